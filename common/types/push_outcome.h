#pragma once

namespace psd {

/// What became of a gradient. The later in this list, the worse for the gradient.
enum class PushOutcome {
  received,  ///< so far: a part of an update that is yet to be applied
  applied,   ///< the shard's update is complete and in the model
  stale,     ///< dropped: computed from values that are older than the policy allows
  late,      ///< dropped: its round was closed without it
};

}  // namespace psd
