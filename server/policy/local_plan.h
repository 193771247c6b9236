#pragma once

#include "server/policy/policy_config.h"

namespace psd {

/// That policies of local steps take no modifiers goes to the reader.
void refuseModifiers(ObjectReader& in);
/// Reads what policies of local steps share: the key "period"; and refuses modifiers.
LocalPlan readLocalPlan(ObjectReader& in);

}  // namespace psd
