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

/// Rows in the memory of a CUDA device, in chunks that are allocated and freed whole. The host keeps the
/// chunk table: row numbers are translated to addresses while they are copied to pinned memory, which is
/// transferred together with the rows' data, so kernels read no table that another thread changes.
/// Thread-safe as RowStorage requires.
///
/// A call borrows a stream, queues its copies and kernels there, and waits for them before it returns.
/// Therefore whatever preceded a call on the host, on any thread and stream, has also completed on the
/// device, and streams never wait for each other: rows guarded by a lock are changed by one kernel after the
/// other; a row is written before the index exposes it to readers; and a chunk is freed only when no reader's
/// guard, which is held across the call, can know its rows. Under Hogwild! kernels of several streams access
/// the same rows; each float is read and written whole, as part of an aligned access. If a row occurs several
/// times in a call, one thread performs all its steps in order.
class CudaRowStorage final : public RowStorage {
 public:
  static constexpr uint64_t kChunkBytes = uint64_t{8} << 20;  ///< maximum size of the rows of a chunk

  /// Keeps `freeBytesMin` bytes of device memory free when it allocates a chunk. `streams` must be prepared.
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
  /// Fills a buffer with a piece of apply() and queues it.
  Status queueApply(RowStream& stream, Rows rows, const float* gradients, const RowUpdate& update,
                    const RowStream::Buffer& buffer) const;
  /// Device address of a row of a plane; null for kNoRow.
  float* placeOf(uint32_t plane, uint32_t row) const;
  Status check(const char* kernel, cudaError_t error) const { return cudaStatus(device_, kernel, error); }

  const int device_;
  const uint64_t freeBytesMin_;
  const RowLayout layout_;
  Optimizer optimizer_;
  const std::shared_ptr<RowStreams> streams_;
  PointerList<float> chunks_;                               // null: closed
  std::map<uint32_t, std::shared_ptr<DeviceFloats>> open_;  // owns the memory of chunks_
};

}  // namespace psd
