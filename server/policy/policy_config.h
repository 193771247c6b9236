#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/config/object_reader.h"
#include "server/optimizer/optimizer.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Builds the policy once the optimizer is known.
using PolicyFactory = std::function<std::unique_ptr<UpdatePolicy>(const Optimizer&)>;

/// One line of policy_list.h.
struct PolicyEntry {
  std::string_view type;     ///< the value of policy.type
  std::string_view summary;  ///< for people
  /// Reads the policy's own options.
  PolicyFactory (*read)(ObjectReader& options);
};

/// A policy as the config chose it.
struct PolicyChoice {
  std::string type;
  PolicyFactory make;
};

/// Reads {"type": …, options…}; problems go to the reader.
PolicyChoice readPolicy(ObjectReader& in);

}  // namespace psd
