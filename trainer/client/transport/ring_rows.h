#pragma once

#include <memory>

#include "common/os/shared_memory.h"
#include "trainer/client/api/ring_blocks.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/ring_places.h"
#include "trainer/client/transport/row_transport.h"

namespace psd {

/// The part of a ring that is used for rows.
struct RowRingSizes {
  RingSizes places;         ///< for slices, in each direction
  uint64_t blockBytes = 0;  ///< for batches

  /// Up to `window` places in each direction for slices of `valuesMax` values, and the rest of `bytesMax` for
  /// blocks. All zero if a place for each direction does not fit, or `valuesMax` is 0.
  static RowRingSizes of(uint64_t valuesMax, uint64_t bytesMax, uint32_t window);
  uint64_t bytes() const { return 2 * places.places * places.placeBytes + blockBytes; }
};

/// Rows through host memory shared with the daemon: directly from and to the batch if it is in the ring and
/// the slice's rows are contiguous there, else copied through a place of one slice. A slice without rows, one
/// larger than a place, and one for which no place is free go in messages. Belongs to the connection's event
/// loop.
class RingRows final : public RowTransport {
 public:
  /// `sizes`: from byte `begin` of the ring. `connection` and `messages` outlive this object.
  RingRows(DaemonConnection& connection, RowTransport& messages, std::shared_ptr<SharedMemory> memory,
           uint64_t begin, const RowRingSizes& sizes);
  ~RingRows() override { blocks_->close(); }

  const char* name() const override { return "shm"; }
  /// For batches.
  const std::shared_ptr<RingBlocks>& blocks() const { return blocks_; }
  /// The connection is about to end.
  void close() { blocks_->close(); }

  kj::Promise<SlicePushed> push(const PushRequest& push, const RowSlice& slice) override;
  kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const RowSlice& slice, RowBatch& batch) override;

 private:
  kj::Promise<SlicePushed> pushAt(uint64_t at, const PushRequest& push, const RowSlice& slice);
  kj::Promise<Result<SlicePulled>> pullTo(uint64_t at, const RowSlice& slice, const RowBatch& batch);
  std::span<float> floatsAt(uint64_t at, uint64_t count) const {
    return {reinterpret_cast<float*>(memory_->data() + at), count};
  }

  DaemonConnection& connection_;
  RowTransport& messages_;
  const std::shared_ptr<SharedMemory> memory_;
  RingPlaces pushes_, pulls_;
  const std::shared_ptr<RingBlocks> blocks_;
};

}  // namespace psd
