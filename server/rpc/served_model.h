#pragma once

#include <memory>

#include "server/policy/update_policy.h"
#include "server/store/parameter_store.h"

namespace psd {

/// The model that the daemon serves: its parameters and the policy that guards them. Shared by all
/// event loops; thread-safe as its parts are.
struct ServedModel {
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<UpdatePolicy> policy;
};

}  // namespace psd
