#pragma once

#include "server/policy/policy_config.h"

namespace psd {

/// Records an error in the reader for each modifier given: policies with local steps support none.
void refuseModifiers(ConfigReader& in);
/// Reads the option common to policies with local steps, "period", and refuses modifiers.
LocalPlan readLocalPlan(ConfigReader& in);

}  // namespace psd
