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

/// What a peer needs to know before it pulls or pushes. A value type.
struct ModelAccess {
  std::string policy, device;  ///< human-readable
  uint64_t sliceElementsMax = 0;
  uint64_t outgoingBytes = 0;               ///< limit on queued answers of one connection
  LocalSteps local;                         ///< period 0: none
  std::string optimizer;                    ///< JSON
  bool takesHyperparameters = false;        ///< with pushes
  std::optional<AllReduceTerms> allReduce;  ///< nothing: trainers push their gradients
  // If several daemons serve the model:
  std::string rules;  ///< see DaemonsConfig
  /// Parameter groups without parameters in this daemon's partition; the last one only if it is a fragment.
  std::vector<uint32_t> emptyGroups;
};

/// Memory that a peer on the daemon's machine may share. A value type.
struct SharingTerms {
  uint64_t ringBytesMax = 0;
  std::vector<uint32_t> deviceOfShard;  ///< empty: device memory is not shared
  std::optional<SharedArena> arena;     ///< the parameters themselves
  bool appliesSlices = true;            ///< all policies do, see UpdatePolicy::Properties
  std::string notShared;                ///< why there is no `arena`
};

ModelAccess accessTo(const ServedModel& model, const DaemonConfig& config);
SharingTerms sharingOf(const ServedModel& model, const DaemonConfig& config);

}  // namespace psd
