#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/status/status.h"
#include "server/coordination/coordinator.h"
#include "server/hosting/parameter_host.h"
#include "server/move/move_mark.h"

namespace psd {

/// The published versions that move along. A value type.
struct VersionTerms {
  bool durable = false;  ///< they are on the disk of the source
  uint64_t bytes = 0;    ///< of all that exist
};

/// Requirements on the targets of a move, as given by the source's lead. A value type.
struct MoveTerms {
  std::string rules;       ///< see moveRules()
  uint32_t worldSize = 0;  ///< of the trainers; 0: unknown yet
  RequestedCodecs codecs;
  MoveLead lead;
  std::optional<VersionTerms> versions = {};  ///< nullopt: the source publishes none
};

/// Checks whether the whole model and its trainers are compatible with the configuration of `host`. The error
/// names each key in conflict, with both values where there are two.
Status checkMove(const MoveTerms& terms, const ModelSpec& whole, const ParameterHost& host);

}  // namespace psd
