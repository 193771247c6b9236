#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "server/store/cuda/apply.cuh"
#include "server/store/cuda/combine.cuh"
#include "server/store/cuda/lane.cuh"
#include "server/store/cuda/storage.cuh"

namespace psd {
namespace {

void* allocateOnDevice(size_t bytes) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
  cudaGetLastError();  // clears the error, which the next kernel launch would report
  return nullptr;
}

void releaseOnDevice(void* memory) { cudaFree(memory); }

constexpr uint64_t kIdleGradientBytesMax = uint64_t{1} << 30;

/// Calls `visit(begin, count)` for pieces that fit the lane's scratch memory, which they reuse in stream
/// order.
template <class Visit>
Status forEachPiece(uint64_t elements, const Visit& visit, uint64_t most = CudaLane::kScratchElements) {
  for (uint64_t at = 0; at < elements; at += most) {
    PSD_RETURN_IF_ERROR(visit(at, std::min(most, elements - at)));
  }
  return {};
}

}  // namespace

void CudaStorage::write(Lane& lane, uint64_t offset, std::span<const float> values, Done done) {
  copyIn(lane, weights_ + offset, values, std::move(done));
}

void CudaStorage::writeSlot(Lane& lane, uint32_t slot, uint64_t offset, std::span<const float> values,
                            Done done) {
  copyIn(lane, slots_[slot] + offset, values, std::move(done));
}

void CudaStorage::copyIn(Lane& anyLane, float* to, std::span<const float> values, Done done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  CudaLane::Staging staged;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    return lane.copyIn(to, values, staged);
  };
  Status queued = queue();  // not as an argument below, where `staged` could be moved from first
  lane.complete(std::move(queued), std::move(staged), std::move(done));
}

Status CudaStorage::step(CudaLane& lane, uint64_t offset, uint64_t count,
                         const std::optional<DenseCode>& code, const UpdateScalars& update,
                         const std::optional<DeviceChange>& change) {
  const DeviceSlice slice{offset, count, weights_, lane.scratch(), code, slots_, change};
  return cudaStatus(arena_->device, "optimizer kernel",
                    applyOnDevice(optimizer_, update, slice, lane.stream()));
}

Status CudaStorage::stepAtEntries(CudaLane& lane, uint64_t offset, const Gradient& gradient, uint64_t entries,
                                  const UpdateScalars& update, CudaLane::Staging& staged) {
  const StagedPieces pieces{entries, CudaLane::kScratchElements / 2, 2};  // a position and a value each
  return lane.forEachStaged(pieces, staged, [&](uint64_t first, uint64_t count, float* buffer) -> Status {
    auto* const places = reinterpret_cast<uint32_t*>(buffer);
    gradient.codec()->entries(gradient.bytes(), gradient.size(), first, std::span(places, count),
                              std::span(buffer + count, count));
    PSD_RETURN_IF_ERROR(lane.queueCopy(lane.scratch(), buffer, 2 * count * sizeof(float)));
    const DeviceEntries slice{offset, count, weights_, reinterpret_cast<const uint32_t*>(lane.scratch()),
                              lane.scratch() + count};
    return cudaStatus(arena_->device, "optimizer kernel",
                      applyEntriesOnDevice(optimizer_, update, slice, lane.stream()));
  });
}

Status CudaStorage::stepInCode(CudaLane& lane, uint64_t offset, const Gradient& gradient,
                               const DenseCode& code, const GradientChange& change,
                               const UpdateScalars& update, CudaLane::Staging& staged) {
  const uint64_t bytes = gradient.bytes().size();
  const uint64_t floats = (bytes + sizeof(float) - 1) / sizeof(float);
  return lane.forEachStaged({floats, floats}, staged, [&](uint64_t, uint64_t, float* buffer) -> Status {
    std::memcpy(buffer, gradient.bytes().data(), bytes);
    PSD_RETURN_IF_ERROR(lane.queueCopy(lane.scratch(), buffer, bytes));
    return step(lane, offset, gradient.size(), code, update, onDevice(lane, change, offset));
  });
}

Status CudaStorage::stepDecoded(CudaLane& lane, uint64_t offset, const Gradient& gradient,
                                const GradientChange& change, const UpdateScalars& update,
                                CudaLane::Staging& staged) {
  const bool compensated = !change.pulled.empty();
  const StagedPieces pieces{gradient.size(), CudaLane::kScratchElements, compensated ? 2u : 1u};
  return lane.forEachStaged(pieces, staged, [&](uint64_t at, uint64_t count, float* buffer) -> Status {
    const uint64_t bytes = count * sizeof(float);
    gradient.copyTo(at, std::span(buffer, count));
    PSD_RETURN_IF_ERROR(lane.queueCopy(lane.scratch(), buffer, bytes));
    if (compensated) {
      std::memcpy(buffer + count, change.pulled.data() + at, bytes);
      PSD_RETURN_IF_ERROR(lane.queueCopy(lane.secondScratch(), buffer + count, bytes));
    }
    return step(lane, offset + at, count, {}, update, onDevice(lane, change, offset + at));
  });
}

Status CudaStorage::makeMeanSquares() {
  if (meanSquares_) return {};
  PSD_ASSIGN_OR_RETURN(meanSquares_, DeviceFloats::allocate(arena_->device, count_));
  // Zeroed on the default stream, for which the lanes' streams do not wait. Once per shard.
  return cudaStatus(arena_->device, "cudaStreamSynchronize", cudaStreamSynchronize(nullptr));
}

std::optional<DeviceChange> CudaStorage::onDevice(const CudaLane& lane, const GradientChange& change,
                                                  uint64_t offset) const {
  if (change.none()) return {};
  DeviceChange prepared{elementChange(change), nullptr, nullptr};
  if (change.pulled.empty()) return prepared;
  prepared.pulled = lane.secondScratch();
  if (change.adaptive) prepared.meanSquare = meanSquares_->data() + offset;
  return prepared;
}

void CudaStorage::apply(Lane& lane, uint64_t offset, const Gradient& gradient, const UpdateScalars& update,
                        Done done) {
  applyChanged(lane, offset, gradient, {}, update, std::move(done));
}

void CudaStorage::applyChanged(Lane& anyLane, uint64_t offset, const Gradient& gradient,
                               const GradientChange& change, const UpdateScalars& update, Done done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  CudaLane::Staging staged;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    if (gradient.onDevice()) return stepInPlace(lane, offset, gradient, change, update);
    const Codec* const codec = gradient.codec();
    const auto entries = codec ? codec->entryCount(gradient.bytes(), gradient.size()) : std::nullopt;
    if (entries && change.none() && !update.pushed && optimizer_.zerosChangeNothing()) {
      return stepAtEntries(lane, offset, gradient, *entries, update, staged);
    }
    if (change.adaptive && !change.pulled.empty()) PSD_RETURN_IF_ERROR(makeMeanSquares());
    const auto code = codec ? codec->denseCode(gradient.size()) : std::nullopt;
    const bool fits = gradient.bytes().size() <= CudaLane::kScratchElements * sizeof(float);
    // One copy of the encoded gradient suffices, unless the pulled weights are needed too, which are as large
    // as the decoded gradient, or runs of it take different steps.
    if (code && fits && change.pulled.empty() && !update.pushed) {
      return stepInCode(lane, offset, gradient, *code, change, update, staged);
    }
    // Zeros have an effect under this optimizer, and a kernel cannot locate the other values in this code:
    // the host decodes.
    return stepDecoded(lane, offset, gradient, change, update, staged);
  };
  Status queued = queue();
  lane.complete(std::move(queued), std::move(staged), std::move(done));
}

void CudaStorage::stage(Lane& anyLane, ReadView gradient, StageDone done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  std::shared_ptr<float> memory;
  CudaLane::Staging pinned;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    PSD_ASSIGN_OR_RETURN(memory, acquireForGradient(*arena_->gradients, gradient.values.size()));
    return lane.copyIn(memory.get(), gradient.values, pinned);
  };
  Status queued = queue();
  const StagedGradient staged{{memory.get(), gradient.values.size()}, memory};
  lane.complete(std::move(queued), std::move(pinned), [staged, done = std::move(done)](Status status) {
    if (!status.ok()) return done(status.error());
    done(staged);
  });
}

void CudaStorage::squaredDistances(Lane& anyLane, std::span<const StagedGradient> gradients,
                                   DistancesDone done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  const size_t vectors = gradients.size();
  const uint64_t bytes = SquaredDistances::pairCount(vectors) * sizeof(double);
  std::shared_ptr<float> result;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    PSD_ASSIGN_OR_RETURN(result, lane.outgoing(bytes / sizeof(float) + 1));
    PSD_ASSIGN_OR_RETURN(const double* const sums,
                         launchDistances(arena_->device, gradients, count_, lane.scratch(), lane.stream()));
    return cudaStatus(arena_->device, "cudaMemcpyAsync",
                      cudaMemcpyAsync(result.get(), sums, bytes, cudaMemcpyDeviceToHost, lane.stream()));
  };
  Status queued = queue();
  lane.complete(std::move(queued), {}, [result, vectors, bytes, done = std::move(done)](Status status) {
    if (!status.ok()) return done(status.error());
    SquaredDistances distances(vectors);
    if (bytes > 0) std::memcpy(distances.pairs().data(), result.get(), bytes);  // one vector has no pairs
    done(std::move(distances));
  });
}

void CudaStorage::addProducts(Lane& anyLane, std::span<const StagedGradient> gradients, uint64_t offset,
                              uint64_t count, InnerProducts sums, ProductsDone done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  const uint64_t bytes = sums.lanes().size_bytes();
  const uint64_t floats = bytes / sizeof(float);
  std::shared_ptr<float> result;
  CudaLane::Staging pinned;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    if (floats > CudaLane::kScratchElements) {
      return {ErrorCode::invalidArgument, "inner products of " + std::to_string(gradients.size()) +
                                              " gradients exceed the limit of a CUDA device"};
    }
    PSD_ASSIGN_OR_RETURN(result, lane.outgoing(floats));
    std::vector<float> begun(floats);
    std::memcpy(begun.data(), sums.lanes().data(), bytes);
    PSD_RETURN_IF_ERROR(lane.copyIn(lane.scratch(), begun, pinned));
    auto* const lanes = reinterpret_cast<double*>(lane.scratch());
    PSD_RETURN_IF_ERROR(launchProducts(arena_->device, gradients, offset, count, lanes, lane.stream()));
    return cudaStatus(arena_->device, "cudaMemcpyAsync",
                      cudaMemcpyAsync(result.get(), lanes, bytes, cudaMemcpyDeviceToHost, lane.stream()));
  };
  Status queued = queue();
  lane.complete(std::move(queued), std::move(pinned),
                [result, bytes, sums = std::move(sums), done = std::move(done)](Status status) mutable {
                  if (!status.ok()) return done(status.error());
                  std::memcpy(sums.lanes().data(), result.get(), bytes);
                  done(std::move(sums));
                });
}

template <class Visit>
Status CudaStorage::combinePieces(CudaLane& lane, std::span<const StagedGradient> gradients,
                                  const Combination& combination, const Visit& visit) {
  return forEachPiece(count_, [&](uint64_t at, uint64_t count) -> Status {
    PSD_RETURN_IF_ERROR(
        launchCombine(arena_->device, gradients, combination, at, count, lane.scratch(), lane.stream()));
    return visit(at, count);
  });
}

void CudaStorage::combinedSquare(Lane& anyLane, std::span<const StagedGradient> gradients,
                                 const Combination& combination, SquareDone done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  constexpr uint64_t kBytes = kSquareParts * sizeof(double);
  std::shared_ptr<float> result;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    PSD_ASSIGN_OR_RETURN(result, lane.outgoing(kBytes / sizeof(float)));
    auto* const parts = reinterpret_cast<double*>(lane.secondScratch());
    PSD_RETURN_IF_ERROR(
        cudaStatus(arena_->device, "cudaMemsetAsync", cudaMemsetAsync(parts, 0, kBytes, lane.stream())));
    PSD_RETURN_IF_ERROR(combinePieces(lane, gradients, combination, [&](uint64_t, uint64_t count) -> Status {
      return cudaStatus(arena_->device, "squares kernel",
                        addSquaresOnDevice(lane.scratch(), count, parts, lane.stream()));
    }));
    return cudaStatus(arena_->device, "cudaMemcpyAsync",
                      cudaMemcpyAsync(result.get(), parts, kBytes, cudaMemcpyDeviceToHost, lane.stream()));
  };
  Status queued = queue();
  lane.complete(std::move(queued), {}, [result, done = std::move(done)](Status status) {
    if (!status.ok()) return done(status.error());
    double parts[kSquareParts];
    std::memcpy(parts, result.get(), kBytes);
    double sum = 0;
    for (const double part : parts) sum += part;
    done(sum);
  });
}

void CudaStorage::applyCombined(Lane& anyLane, std::span<const StagedGradient> gradients,
                                const Combination& combination, const UpdateScalars& update, Done done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  std::optional<DeviceChange> change;
  if (!combination.change.none()) change = DeviceChange{elementChange(combination.change), nullptr, nullptr};
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    return combinePieces(lane, gradients, combination, [&](uint64_t at, uint64_t count) -> Status {
      return step(lane, at, count, {}, update, change);
    });
  };
  lane.complete(queue(), {}, std::move(done));
}

void CudaStorage::combine(Lane& anyLane, std::span<const StagedGradient> gradients,
                          const Combination& combination, ReadDone done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  std::shared_ptr<float> combined;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    PSD_ASSIGN_OR_RETURN(combined, lane.outgoing(count_));
    return combinePieces(lane, gradients, combination, [&](uint64_t at, uint64_t count) -> Status {
      return cudaStatus(arena_->device, "cudaMemcpyAsync",
                        cudaMemcpyAsync(combined.get() + at, lane.scratch(), count * sizeof(float),
                                        cudaMemcpyDeviceToHost, lane.stream()));
    });
  };
  Status queued = queue();
  lane.complete(std::move(queued), {}, [combined, count = count_, done = std::move(done)](Status status) {
    if (!status.ok()) return done(status.error());
    done(ReadView{{combined.get(), count}, combined});
  });
}

void CudaStorage::read(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) {
  copyOut(lane, weights_ + offset, count, std::move(done));
}

void CudaStorage::snapshot(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) {
  copyOut(lane, weights_ + offset, count, std::move(done));
}

void CudaStorage::readSlot(Lane& lane, uint32_t slot, uint64_t offset, uint64_t count, ReadDone done) {
  copyOut(lane, slots_[slot] + offset, count, std::move(done));
}

void CudaStorage::copyOut(Lane& anyLane, const float* from, uint64_t count, ReadDone done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  std::shared_ptr<float> staged;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    PSD_ASSIGN_OR_RETURN(staged, lane.outgoing(count));
    return cudaStatus(
        arena_->device, "cudaMemcpyAsync",
        cudaMemcpyAsync(staged.get(), from, count * sizeof(float), cudaMemcpyDeviceToHost, lane.stream()));
  };
  Status queued = queue();
  lane.complete(std::move(queued), {}, [staged, count, done = std::move(done)](Status status) {
    if (!status.ok()) return done(status.error());
    done(ReadView{{staged.get(), count}, staged});
  });
}

std::shared_ptr<StagingPool> makeDevicePool() {
  return StagingPool::make({.allocate = allocateOnDevice, .release = releaseOnDevice},
                           {.lentBytesMax = UINT64_MAX, .idleBytesMax = kIdleGradientBytesMax});
}

}  // namespace psd
