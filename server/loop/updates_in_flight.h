#pragma once

#include <cstdint>

namespace psd {

/// Counts the gradients in flight on one event loop: partly or fully received, and without a final answer. A
/// value type, owned by the loop's thread.
struct UpdatesInFlight {
  uint64_t open = 0;              ///< gradients, including those that wait for other trainers
  uint64_t arriving = 0;          ///< gradients of `open` with slices outstanding
  uint64_t slicesProcessing = 0;  ///< slices that policies are processing, excluding those that wait

  /// No gradient is incomplete or being processed: those that are left wait for other trainers.
  bool atRest() const { return arriving == 0 && slicesProcessing == 0; }
};

}  // namespace psd
