#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "server/store/arena_plan.h"
#include "server/store/rows/cuda/row_kernels.cuh"
#include "server/store/rows/cuda/row_storage.cuh"

namespace psd {
namespace {

/// An array in a buffer, as host and device addresses.
template <class T>
struct BufferArray {
  T* host;
  T* device;
};

/// Allocates consecutive arrays in a buffer, each at a multiple of 16 bytes.
class BufferCut {
 public:
  static constexpr uint64_t kAligned = 16;

  explicit BufferCut(const RowStream::Buffer& buffer) : buffer_(buffer) {}

  template <class T>
  BufferArray<T> take(uint64_t count) {
    const uint64_t at = end_;
    end_ = (at + count * sizeof(T) + kAligned - 1) / kAligned * kAligned;
    return {reinterpret_cast<T*>(buffer_.host + at), reinterpret_cast<T*>(buffer_.device + at)};
  }
  /// Bytes from the start of the buffer to the end of the last array.
  uint64_t end() const { return end_; }

 private:
  const RowStream::Buffer& buffer_;
  uint64_t end_ = 0;
};

/// Number of items of `bytesEach` bytes that fit into a buffer, split over a few arrays.
uint64_t itemsPerBuffer(uint64_t bytesEach) {
  constexpr uint64_t kArraysMax = 8;
  return (RowStream::kBufferBytes - kArraysMax * BufferCut::kAligned) / bytesEach;
}

}  // namespace

CudaRowStorage::CudaRowStorage(int device, uint64_t freeBytesMin, uint32_t dim, const Optimizer& optimizer,
                               std::shared_ptr<RowStreams> streams)
    : device_(device),
      freeBytesMin_(freeBytesMin),
      layout_(dim, optimizer.slots(), kChunkBytes),
      optimizer_(optimizer),
      streams_(std::move(streams)) {}

Status CudaRowStorage::open(uint32_t chunk, bool /*touched*/) {
  PSD_RETURN_IF_ERROR(check("cudaSetDevice", cudaSetDevice(device_)));
  size_t freeBytes = 0;
  size_t totalBytes = 0;
  PSD_RETURN_IF_ERROR(check("cudaMemGetInfo", cudaMemGetInfo(&freeBytes, &totalBytes)));
  if (layout_.chunkBytes() + freeBytesMin_ > freeBytes) {
    return notEnoughMemory(cudaDeviceName(device_), layout_.chunkBytes(),
                           std::to_string(freeBytes) + " bytes are free, and " +
                               std::to_string(freeBytesMin_) + " of them are reserved");
  }
  PSD_ASSIGN_OR_RETURN(auto floats, DeviceFloats::allocate(device_, layout_.chunkBytes() / sizeof(float)));
  // Zeroed on the default stream, for which other streams do not wait.
  PSD_RETURN_IF_ERROR(check("cudaStreamSynchronize", cudaStreamSynchronize(nullptr)));
  chunks_.set(chunk, floats->data());
  open_[chunk] = std::move(floats);
  return {};
}

void CudaRowStorage::close(uint32_t chunk) {
  chunks_.set(chunk, nullptr);
  open_.erase(chunk);
}

float* CudaRowStorage::placeOf(uint32_t plane, uint32_t row) const {
  if (row == kNoRow) return nullptr;
  const uint64_t inChunk = row & (layout_.rowsPerChunk() - 1);
  return chunks_.get(row >> layout_.chunkBits()) + layout_.planeBegin(plane) +
         inChunk * layout_.planeStride(plane);
}

// --- Planes -------------------------------------------------------------------------------------------

void CudaRowStorage::gather(Rows rows, std::span<float> out, Rows /*next*/) const {
  streams_->use([&](RowStream& stream) { return gatherOn(stream, 0, rows, out); });
}

void CudaRowStorage::readPlane(uint32_t plane, Rows rows, std::span<float> out) const {
  streams_->use([&](RowStream& stream) { return gatherOn(stream, plane, rows, out); });
}

Status CudaRowStorage::gatherOn(RowStream& stream, uint32_t plane, Rows rows, std::span<float> out) const {
  const uint32_t width = layout_.width(plane);
  std::vector<uint32_t> there;  // indices of existing rows
  there.reserve(rows.size());
  for (uint32_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != kNoRow) there.push_back(i);
  }
  const auto queue = [&](uint64_t at, uint64_t some, const RowStream::Buffer& buffer) -> Status {
    BufferCut cut(buffer);
    const auto places = cut.take<float*>(some);
    for (uint64_t k = 0; k < some; ++k) places.host[k] = placeOf(plane, rows[there[at + k]]);
    PSD_RETURN_IF_ERROR(stream.copyIn(buffer, 0, cut.end()));
    const uint64_t valuesAt = cut.end();
    const auto values = cut.take<float>(some * width);
    const DevicePlane from{places.device, 0, static_cast<uint32_t>(some), width};
    PSD_RETURN_IF_ERROR(check("gather kernel", gatherOnDevice(from, values.device, stream.stream())));
    return stream.copyOut(buffer, valuesAt, some * width * sizeof(float));
  };
  const auto finish = [&](uint64_t at, uint64_t some, const RowStream::Buffer& buffer) {
    BufferCut cut(buffer);
    cut.take<float*>(some);
    const float* const values = cut.take<float>(some * width).host;
    for (uint64_t k = 0; k < some; ++k) {
      std::memcpy(out.data() + uint64_t{there[at + k]} * width, values + k * width, width * sizeof(float));
    }
  };
  return stream.run(there.size(), itemsPerBuffer(sizeof(float*) + width * sizeof(float)), queue, finish);
}

void CudaRowStorage::writePlane(uint32_t plane, Rows rows, std::span<const float> values) {
  streams_->use([&](RowStream& stream) { return writeOn(stream, plane, rows, values); });
}

Status CudaRowStorage::writeOn(RowStream& stream, uint32_t plane, Rows rows,
                               std::span<const float> values) const {
  const uint32_t width = layout_.width(plane);
  const auto queue = [&](uint64_t at, uint64_t some, const RowStream::Buffer& buffer) -> Status {
    BufferCut cut(buffer);
    const auto places = cut.take<float*>(some);
    const auto staged = cut.take<float>(some * width);
    for (uint64_t k = 0; k < some; ++k) places.host[k] = placeOf(plane, rows[at + k]);
    std::memcpy(staged.host, values.data() + at * width, some * width * sizeof(float));
    PSD_RETURN_IF_ERROR(stream.copyIn(buffer, 0, cut.end()));
    const DevicePlane to{places.device, 0, static_cast<uint32_t>(some), width};
    return check("scatter kernel", scatterOnDevice(to, staged.device, stream.stream()));
  };
  return stream.run(rows.size(), itemsPerBuffer(sizeof(float*) + width * sizeof(float)), queue);
}

// --- New rows -----------------------------------------------------------------------------------------

void CudaRowStorage::create(Rows rows, std::span<const uint64_t> ids, const RowInitial& initial) {
  streams_->use([&](RowStream& stream) { return createOn(stream, rows, ids, initial); });
}

Status CudaRowStorage::createOn(RowStream& stream, Rows rows, std::span<const uint64_t> ids,
                                const RowInitial& initial) const {
  const auto queue = [&](uint64_t at, uint64_t some, const RowStream::Buffer& buffer) -> Status {
    BufferCut cut(buffer);
    const auto begins = cut.take<float*>(some);
    const auto staged = cut.take<uint64_t>(some);
    const auto rowSlots = cut.take<float*>(layout_.hasRowSlots() ? some : 0);
    // The first per-row slot; the others follow it at the same distance in each chunk.
    uint32_t firstRowSlot = 0;
    for (uint32_t plane = layout_.planeCount(); --plane > 0;) {
      if (layout_.slots()[plane - 1].perRow) firstRowSlot = plane;
    }
    for (uint64_t k = 0; k < some; ++k) {
      begins.host[k] = placeOf(0, rows[at + k]);
      staged.host[k] = ids[at + k];
      if (firstRowSlot > 0) rowSlots.host[k] = placeOf(firstRowSlot, rows[at + k]);
    }
    PSD_RETURN_IF_ERROR(stream.copyIn(buffer, 0, cut.end()));
    const auto count = static_cast<uint32_t>(some);
    const DevicePlane values{begins.device, 0, count, layout_.dim()};
    PSD_RETURN_IF_ERROR(
        check("initial values kernel", fillInitialOnDevice(values, staged.device, initial, stream.stream())));
    for (uint32_t plane = 1; plane < layout_.planeCount(); ++plane) {
      const Slot& slot = layout_.slots()[plane - 1];
      const uint64_t from = slot.perRow ? layout_.planeBegin(firstRowSlot) : 0;
      const DevicePlane state{slot.perRow ? rowSlots.device : begins.device, layout_.planeBegin(plane) - from,
                              count, layout_.width(plane)};
      PSD_RETURN_IF_ERROR(check("fill kernel", fillPlaneOnDevice(state, slot.initialValue, stream.stream())));
    }
    return {};
  };
  return stream.run(rows.size(), itemsPerBuffer(2 * sizeof(float*) + sizeof(uint64_t)), queue);
}

// --- Steps --------------------------------------------------------------------------------------------

void CudaRowStorage::apply(Rows rows, std::span<const float> gradients, const RowUpdate& update,
                           Rows /*next*/) {
  streams_->use([&](RowStream& stream) { return applyOn(stream, rows, gradients, update); });
}

Status CudaRowStorage::applyOn(RowStream& stream, Rows rows, std::span<const float> gradients,
                               const RowUpdate& update) const {
  const uint64_t dim = layout_.dim();
  const uint64_t bytesEach =
      2 * sizeof(float*) + 2 * sizeof(uint32_t) + StagedSteps::kStepBytesMax + dim * sizeof(float);
  const auto queue = [&](uint64_t at, uint64_t some, const RowStream::Buffer& buffer) {
    RowUpdate own = update;
    if (!own.numbers.empty()) own.numbers = own.numbers.subspan(at, some);
    return queueApply(stream, rows.subspan(at, some), gradients.data() + at * dim, own, buffer);
  };
  return stream.run(rows.size(), itemsPerBuffer(bytesEach), queue);
}

Status CudaRowStorage::queueApply(RowStream& stream, Rows rows, const float* gradients,
                                  const RowUpdate& update, const RowStream::Buffer& buffer) const {
  RowGroups& groups = stream.groups();
  groups.make(rows);
  const auto different = groups.rows();
  const auto order = groups.order();
  if (order.empty()) return {};
  const uint32_t dim = layout_.dim();
  const bool rowSlots = layout_.hasRowSlots();
  BufferCut cut(buffer);
  const auto begins = cut.take<float*>(different.size());
  const auto slots = cut.take<float*>(rowSlots ? different.size() : 0);
  const auto ends = cut.take<uint32_t>(different.size());
  const auto stepOf = cut.take<uint32_t>(update.numbers.empty() ? 0 : order.size());
  const auto staged = cut.take<float>(order.size() * dim);
  for (size_t i = 0; i < different.size(); ++i) {
    begins.host[i] = placeOf(0, different[i]);
    if (rowSlots) slots.host[i] = placeOf(1, different[i]);
  }
  std::copy(groups.ends().begin(), groups.ends().end(), ends.host);
  for (size_t k = 0; k < order.size(); ++k) {
    std::memcpy(staged.host + k * dim, gradients + uint64_t{order[k]} * dim, dim * sizeof(float));
  }
  const uint64_t stepsAt = cut.end();
  const uint64_t stepBytes =
      StagedSteps::write(optimizer_, update, order, buffer.host + stepsAt, stepOf.host);
  PSD_RETURN_IF_ERROR(stream.copyIn(buffer, 0, stepsAt + stepBytes));
  // A row step does not depend on the number.
  const bool numbered = !update.numbers.empty() && !optimizer_.rowsOnly();
  const DeviceUpdate job{begins.device,
                         rowSlots ? slots.device : nullptr,
                         ends.device,
                         static_cast<uint32_t>(different.size()),
                         dim,
                         staged.device,
                         static_cast<uint32_t>(order.size()),
                         buffer.device + stepsAt,
                         numbered ? stepOf.device : nullptr};
  return check("optimizer kernel",
               applyRowsOnDevice(optimizer_, update.scalars, update.change, job, stream.stream()));
}

}  // namespace psd
