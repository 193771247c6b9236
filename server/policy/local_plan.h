#pragma once

#include "server/policy/policy_config.h"

namespace psd {

/// Reads what policies of local steps share: the key "period". That they take no modifiers goes to the
/// reader.
LocalPlan readLocalPlan(ObjectReader& in);

}  // namespace psd
