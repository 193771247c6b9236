#pragma once

namespace psd {

/// Outcome of a gradient, in ascending order of severity.
enum class PushOutcome {
  received,  ///< so far: part of an update that is not applied yet
  applied,   ///< the shard's update is complete and in the model
  stale,     ///< dropped: its basis is older than the policy allows
  late,      ///< dropped: its round closed without it
};

}  // namespace psd
