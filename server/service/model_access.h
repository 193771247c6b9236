#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/types/all_reduce.h"
#include "common/types/local_steps.h"
#include "server/config/daemon_config.h"
#include "server/policy/served_model.h"

namespace psd {

/// What a peer must know before it pulls or pushes. A value type.
struct ModelAccess {
  std::string policy, device;  ///< for people
  uint64_t sliceElementsMax = 0;
  uint64_t outgoingBytes = 0;               ///< of answers that wait for one connection
  LocalSteps local;                         ///< period 0: none
  std::optional<AllReduceTerms> allReduce;  ///< nothing: trainers push their gradients
  // Where several daemons serve the model:
  std::string rules;  ///< see DaemonsConfig
  /// That take nothing of this daemon's partition; the last only as a fragment.
  std::vector<uint32_t> emptyGroups;
};

/// What memory a peer on the daemon's machine may share with it. A value type.
struct SharingTerms {
  uint64_t ringBytesMax = 0;
  std::vector<uint32_t> deviceOfShard;  ///< empty: no memory of devices is shared
  std::optional<SharedArena> arena;     ///< the parameters themselves
  std::string notShared;                ///< why they are not
};

ModelAccess accessTo(const ServedModel& model, const DaemonConfig& config);
SharingTerms sharingOf(const ServedModel& model, const DaemonConfig& config);

}  // namespace psd
