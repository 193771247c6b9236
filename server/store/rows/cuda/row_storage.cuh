#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "server/store/cuda/device.cuh"
#include "server/store/rows/cuda/row_streams.cuh"
#include "server/store/rows/pointer_list.h"
#include "server/store/rows/row_storage.h"

namespace psd {

/// Rows in the memory of a CUDA device, in chunks that are taken and given back whole. The host knows where
/// the chunks are: row numbers become addresses on their way into pinned memory, which goes to the device
/// with what belongs to the rows, so that no kernel reads a list that somebody else changes. Thread-safe as
/// RowStorage demands.
///
/// A call borrows a stream of the device, queues its copies and kernels there, and waits for their end before
/// it returns. So what happened before a call on the host, on whichever thread and stream, has happened on
/// the device too, and no stream ever waits for another one: rows that a lock guards are changed by one
/// kernel after the other; a row is written before the index leads readers to it; and a chunk is given back
/// when no reader's guard, which is held across the call, can know its rows. Under Hogwild! kernels of
/// several streams work on the same rows; each float is read and written whole, as part of an aligned access.
/// Of a row that comes several times in a call one thread makes all steps, in their order.
class CudaRowStorage final : public RowStorage {
 public:
  static constexpr uint64_t kChunkBytes = uint64_t{8} << 20;  ///< the rows of a chunk take at most so much

  /// So many bytes of the device stay free when a chunk is taken. `streams` are prepared.
  CudaRowStorage(int device, uint64_t freeBytesMin, uint32_t dim, const Optimizer& optimizer,
                 std::shared_ptr<RowStreams> streams);

  const RowLayout& layout() const override { return layout_; }
  const Optimizer& optimizer() const override { return optimizer_; }
  void setOptimizer(const Optimizer& optimizer) override { optimizer_ = optimizer; }
  uint32_t batchRows() const override { return 16'384; }
  bool takesWholeChunks() const override { return true; }
  Status state() const override { return streams_->state(); }

  Status open(uint32_t chunk, bool touched) override;
  void close(uint32_t chunk) override;
  void gather(Rows rows, std::span<float> out, Rows next) const override;
  void create(Rows rows, std::span<const uint64_t> ids, const RowInitial& initial) override;
  void apply(Rows rows, std::span<const float> gradients, const RowUpdate& update, Rows next) override;
  void readPlane(uint32_t plane, Rows rows, std::span<float> out) const override;
  void writePlane(uint32_t plane, Rows rows, std::span<const float> values) override;

 private:
  Status gatherOn(RowStream& stream, uint32_t plane, Rows rows, std::span<float> out) const;
  Status createOn(RowStream& stream, Rows rows, std::span<const uint64_t> ids,
                  const RowInitial& initial) const;
  Status applyOn(RowStream& stream, Rows rows, std::span<const float> gradients,
                 const RowUpdate& update) const;
  Status writeOn(RowStream& stream, uint32_t plane, Rows rows, std::span<const float> values) const;
  /// Fills a buffer with a piece of apply(), and queues it.
  Status queueApply(RowStream& stream, Rows rows, const float* gradients, const RowUpdate& update,
                    const RowStream::Buffer& buffer) const;
  /// Where a row of a plane is in the device's memory; null for kNoRow.
  float* placeOf(uint32_t plane, uint32_t row) const;
  Status check(const char* kernel, cudaError_t error) const { return cudaStatus(device_, kernel, error); }

  const int device_;
  const uint64_t freeBytesMin_;
  const RowLayout layout_;
  Optimizer optimizer_;
  const std::shared_ptr<RowStreams> streams_;
  PointerList<float> chunks_;                               // null: not open
  std::map<uint32_t, std::shared_ptr<DeviceFloats>> open_;  // their memory
};

}  // namespace psd
