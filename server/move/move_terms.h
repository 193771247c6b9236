#pragma once

#include <cstdint>
#include <string>

#include "common/status/status.h"
#include "server/coordination/coordinator.h"
#include "server/hosting/parameter_host.h"
#include "server/move/move_mark.h"

namespace psd {

/// Requirements on the targets of a move, as given by the source's lead. A value type.
struct MoveTerms {
  std::string rules;       ///< see moveRules()
  uint32_t worldSize = 0;  ///< of the trainers; 0: unknown yet
  RequestedCodecs codecs;
  MoveLead lead;
};

/// Checks whether the whole model and its trainers are compatible with the configuration of `host`. The error
/// names each key in conflict, with both values where there are two.
Status checkMove(const MoveTerms& terms, const ModelSpec& whole, const ParameterHost& host);

}  // namespace psd
