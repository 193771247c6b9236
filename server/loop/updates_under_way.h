#pragma once

#include <cstdint>

namespace psd {

/// The gradients of one event loop that have begun to come in and have no final answer. A value type, owned
/// by the loop's thread.
struct UpdatesUnderWay {
  uint64_t open = 0;          ///< gradients; those that wait for other trainers are among them
  uint64_t arriving = 0;      ///< gradients of `open` that lack slices
  uint64_t slicesAtWork = 0;  ///< slices that policies are at work on; slices that wait are not among them

  /// No gradient is half there, and no policy is at work on one: those that are left wait for other trainers.
  bool atRest() const { return arriving == 0 && slicesAtWork == 0; }
};

}  // namespace psd
