#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "trainer/client/api/ring_blocks.h"

namespace psd {

/// Allocates memory for the rows of a client's batches: in the ring of the current connection if it has
/// space, else on the heap. Thread-safe.
class RowMemory {
 public:
  struct Block {
    std::shared_ptr<float> values;
    std::shared_ptr<const RingBlocks> ring;  ///< null: on the heap

    /// Whether the ring's connection has ended, so that the daemon may still write here.
    bool lost() const { return ring && ring->closed(); }
  };

  /// Sets the ring of the current connection; null: none.
  void use(std::shared_ptr<RingBlocks> ring);
  /// A block of `bytes` in the ring; without values if there is no space.
  Block takeInRing(uint64_t bytes) const;
  static Block takeOnHeap(uint64_t bytes);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<RingBlocks> ring_;
};

}  // namespace psd
