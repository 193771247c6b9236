#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/config/object_reader.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Builds the policy once the parameters that it rules are there.
using PolicyFactory = std::function<std::unique_ptr<UpdatePolicy>(const PolicyScope&)>;

/// What tells policies apart beyond their names, for those who must know it before there is a model.
struct PolicyTraits {
  bool readsLive = false;  ///< UpdatePolicy::readsLive()
  /// Applies each update to a whole shard under its lock and gives it to Shard::endUpdate(): it can be
  /// logged.
  bool recordsUpdates = false;
  bool rounds = false;  ///< gradients of several trainers and of all shards of a group make one update
};

/// A policy with the options that were read.
struct PolicyPlan {
  PolicyFactory make;
  /// The optimizer gets other gradients than trainers push: no log replays that.
  bool changesGradients = false;
};

/// One line of policy_list.h.
struct PolicyEntry {
  std::string_view type;     ///< the value of policy.type
  std::string_view summary;  ///< for people
  PolicyTraits traits;
  /// Reads the policy's own options.
  PolicyPlan (*read)(ObjectReader& options);
};

/// A policy as the config chose it.
struct PolicyChoice {
  std::string type;
  PolicyTraits traits;
  PolicyPlan plan;
};

/// Reads {"type": …, options…}; problems go to the reader.
PolicyChoice readPolicy(ObjectReader& in);

}  // namespace psd
