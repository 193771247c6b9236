#pragma once

#include <cstdint>
#include <string>

#include "common/status/status.h"
#include "server/coordination/coordinator.h"
#include "server/hosting/parameter_host.h"
#include "server/move/move_mark.h"

namespace psd {

/// What daemons to which a model moves must suit, as the lead of those that have it tells. A value type.
struct MoveTerms {
  std::string rules;       ///< see moveRules()
  uint32_t worldSize = 0;  ///< of the trainers; 0: not known yet
  AskedCodecs codecs;
  MoveLead lead;
};

/// Whether the whole model, and those who train it, could go on here with a configuration. The error names
/// each key that keeps them from it, with both values where there are two.
Status checkMove(const MoveTerms& terms, const ModelSpec& whole, const ParameterHost& host);

}  // namespace psd
