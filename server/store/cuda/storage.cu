#include <cstring>
#include <utility>

#include "server/store/cuda/combine.cuh"
#include "server/store/cuda/lane.cuh"
#include "server/store/cuda/launch.cuh"
#include "server/store/cuda/storage.cuh"

namespace psd {
namespace {

/// Four floats in one 16-byte access.
struct alignas(16) Four {
  float at[4];
};

/// One step for a weight at `w` and its slots.
template <class Step, class... Slots>
__device__ void stepOne(const Step& step, float* w, const float* g, Slots*... slots) {
  float values[] = {*slots..., 0.f};  // the last one only so that it is never empty
  step(*w, *g, values);
  [[maybe_unused]] uint32_t slot = 0;
  ((*slots = values[slot++]), ...);
}

/// The same for four weights at a time.
template <class Step, class... Slots>
__device__ void stepFour(const Step& step, Four* w, const Four* g, Slots*... slots) {
  Four weights = *w;
  const Four gradients = *g;
  Four states[] = {*slots..., Four{}};
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    float values[Step::kSlots + 1];
#pragma unroll
    for (uint32_t slot = 0; slot != Step::kSlots; ++slot) values[slot] = states[slot].at[i];
    step(weights.at[i], gradients.at[i], values);
#pragma unroll
    for (uint32_t slot = 0; slot != Step::kSlots; ++slot) states[slot].at[i] = values[slot];
  }
  *w = weights;
  [[maybe_unused]] uint32_t slot = 0;
  ((*slots = states[slot++]), ...);
}

/// w, g and slots: 16-byte aligned, `n` floats each. Other kernels may be at the same weights: every
/// access is whole per element, and that is all that Hogwild! asks for.
template <class Step, class... Slots>
__global__ void applyKernel(const Step step, uint64_t n, float* w, const float* g, Slots*... slots) {
  const uint64_t first = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = first; i < n / 4; i += stride) {
    stepFour(step, reinterpret_cast<Four*>(w) + i, reinterpret_cast<const Four*>(g) + i,
             reinterpret_cast<Four*>(slots) + i...);
  }
  const uint64_t rest = n / 4 * 4 + first;
  if (rest < n) stepOne(step, w + rest, g + rest, slots + rest...);
}

/// The same for a gradient that a codec made, decoded on the way.
template <class Step, class... Slots>
__global__ void applyDenseKernel(const Step step, uint64_t n, float* w, const DenseCode code,
                                 const unsigned char* g, Slots*... slots) {
  const uint64_t first = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = first; i < n / 4; i += stride) {
    Four gradients;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) gradients.at[j] = denseValue(code, g, 4 * i + j);
    stepFour(step, reinterpret_cast<Four*>(w) + i, &gradients, reinterpret_cast<Four*>(slots) + i...);
  }
  const uint64_t rest = n / 4 * 4 + first;
  if (rest < n) {
    const float gradient = denseValue(code, g, rest);
    stepOne(step, w + rest, &gradient, slots + rest...);
  }
}

__global__ void fillKernel(float* data, uint64_t n, float value) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    data[i] = value;
  }
}

/// Where a step works: the slice's weights, gradient (device memory; in `code` where there is one) and slots.
struct DeviceSlice {
  uint64_t offset, n;
  float* weights;
  const float* gradient;
  std::optional<DenseCode> code;
  const std::vector<float*>& slots;
};

template <class Step, size_t... kSlots>
void launchStep(const Step& step, const DeviceSlice& slice, cudaStream_t stream,
                std::index_sequence<kSlots...>) {
  const uint32_t blocks = blocksFor((slice.n + 3) / 4);
  if (slice.code) {
    applyDenseKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(
        step, slice.n, slice.weights + slice.offset, *slice.code,
        reinterpret_cast<const unsigned char*>(slice.gradient), slice.slots[kSlots] + slice.offset...);
  } else {
    applyKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(
        step, slice.n, slice.weights + slice.offset, slice.gradient, slice.slots[kSlots] + slice.offset...);
  }
}

Status launchStep(const DeviceArena& arena, const UpdateScalars& update, const DeviceSlice& slice,
                  cudaStream_t stream) {
  cudaGetLastError();  // what an earlier call left behind says nothing about this launch
  arena.optimizer.visitStep(update, [&]<class Step>(const Step& step) {
    launchStep(step, slice, stream, std::make_index_sequence<Step::kSlots>());
  });
  return cudaStatus(arena.device, "optimizer kernel", cudaGetLastError());
}

void* allocateOnDevice(size_t bytes) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
  cudaGetLastError();  // else the next kernel launch would seem to have failed
  return nullptr;
}

void releaseOnDevice(void* memory) { cudaFree(memory); }

constexpr uint64_t kIdleGradientBytesMax = uint64_t{1} << 30;

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
  std::shared_ptr<float> staged;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    PSD_ASSIGN_OR_RETURN(staged, lane.copyIn(to, std::as_bytes(values)));
    return {};
  };
  lane.complete(queue(), std::move(staged), std::move(done));
}

void CudaStorage::apply(Lane& anyLane, uint64_t offset, const Gradient& gradient, const UpdateScalars& update,
                        Done done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  std::shared_ptr<float> staged;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    PSD_ASSIGN_OR_RETURN(float* const scratch, lane.scratch(gradient.size()));
    const Codec* const codec = gradient.codec();
    const auto code = codec ? codec->denseCode(gradient.size()) : std::nullopt;
    if (codec && !code) {  // mostly zeros: decoded here, since its parts lie where no thread can guess
      PSD_ASSIGN_OR_RETURN(staged, lane.copyIn(scratch, gradient.size(),
                                               [&](std::span<float> out) { gradient.copyTo(0, out); }));
    } else {
      PSD_ASSIGN_OR_RETURN(staged, lane.copyIn(scratch, gradient.bytes()));
    }
    return launchStep(*arena_, update, {offset, gradient.size(), weights_, scratch, code, slots_},
                      lane.stream());
  };
  lane.complete(queue(), std::move(staged), std::move(done));
}

void CudaStorage::stage(Lane& anyLane, ReadView gradient, StageDone done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  std::shared_ptr<float> memory, pinned;
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    PSD_ASSIGN_OR_RETURN(memory, arena_->gradients->acquire(gradient.values.size()));
    PSD_ASSIGN_OR_RETURN(pinned, lane.copyIn(memory.get(), std::as_bytes(gradient.values)));
    return {};
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
    PSD_ASSIGN_OR_RETURN(float* const scratch, lane.scratch(distanceScratchFloats(vectors)));
    PSD_ASSIGN_OR_RETURN(result, lane.staging(bytes / sizeof(float) + 1));
    PSD_ASSIGN_OR_RETURN(const double* const sums,
                         launchDistances(arena_->device, gradients, count_, scratch, lane.stream()));
    return cudaStatus(arena_->device, "cudaMemcpyAsync",
                      cudaMemcpyAsync(result.get(), sums, bytes, cudaMemcpyDeviceToHost, lane.stream()));
  };
  Status queued = queue();
  lane.complete(std::move(queued), nullptr, [result, vectors, bytes, done = std::move(done)](Status status) {
    if (!status.ok()) return done(status.error());
    SquaredDistances distances(vectors);
    std::memcpy(distances.pairs().data(), result.get(), bytes);
    done(std::move(distances));
  });
}

void CudaStorage::applyCombined(Lane& anyLane, std::span<const StagedGradient> gradients,
                                const Combination& combination, const UpdateScalars& update, Done done) {
  CudaLane& lane = static_cast<CudaLane&>(anyLane);
  const auto queue = [&]() -> Status {
    PSD_RETURN_IF_ERROR(lane.begin());
    PSD_ASSIGN_OR_RETURN(float* const combined, lane.scratch(count_));
    PSD_RETURN_IF_ERROR(
        launchCombine(arena_->device, gradients, combination, count_, combined, lane.stream()));
    return launchStep(*arena_, update, {0, count_, weights_, combined, {}, slots_}, lane.stream());
  };
  lane.complete(queue(), nullptr, std::move(done));
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
    PSD_ASSIGN_OR_RETURN(staged, lane.staging(count));
    return cudaStatus(
        arena_->device, "cudaMemcpyAsync",
        cudaMemcpyAsync(staged.get(), from, count * sizeof(float), cudaMemcpyDeviceToHost, lane.stream()));
  };
  Status queued = queue();
  lane.complete(std::move(queued), nullptr, [staged, count, done = std::move(done)](Status status) {
    if (!status.ok()) return done(status.error());
    done(ReadView{{staged.get(), count}, staged});
  });
}

std::shared_ptr<StagingPool> makeDevicePool(uint64_t bytesMax) {
  return StagingPool::make({.allocate = allocateOnDevice, .release = releaseOnDevice},
                           {.lentBytesMax = bytesMax, .idleBytesMax = kIdleGradientBytesMax});
}

cudaError_t fillOnDevice(float* data, uint64_t n, float value) {
  fillKernel<<<blocksFor(n), kThreadsPerBlock>>>(data, n, value);
  return cudaGetLastError();
}

cudaError_t checkDeviceCode() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, fillKernel);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace psd
