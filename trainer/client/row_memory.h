#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "trainer/client/ring_blocks.h"

namespace psd {

/// Where the rows of a client's batches lie: in the ring that its connection has now, where that has room,
/// else on the heap. Thread-safe.
class RowMemory {
 public:
  struct Block {
    std::shared_ptr<float> values;
    std::shared_ptr<const RingBlocks> ring;  ///< null: on the heap

    /// Whether the ring's connection is gone, so that the daemon may still write here.
    bool lost() const { return ring && ring->closed(); }
  };

  /// The ring that there is from now on; null: none.
  void use(std::shared_ptr<RingBlocks> ring);
  /// A block of so many bytes in the ring; without values where there is no room for it.
  Block takeInRing(uint64_t bytes) const;
  static Block takeOnHeap(uint64_t bytes);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<RingBlocks> ring_;
};

}  // namespace psd
