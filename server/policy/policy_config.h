#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/config_reader.h"
#include "common/types/all_reduce.h"
#include "common/types/local_steps.h"
#include "server/optimizer/optimizer.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Builds the policy once the parameters that it manages exist. Called from any thread, possibly
/// concurrently.
using PolicyFactory = std::function<std::unique_ptr<UpdatePolicy>(const PolicyScope&)>;

/// Static properties of a policy type, for code that needs them before a model exists.
struct PolicyTraits {
  bool readsLive = false;  ///< UpdatePolicy::Properties::readsLive
  /// With PolicyScope::recorded, applies each update to a whole shard under its lock and passes it to
  /// ParameterBlock::endUpdate() or endRacingUpdate().
  bool recordsUpdates = false;
  bool rounds = false;       ///< UpdatePolicy::rounds(): the gradients for all shards form one update
  bool tables = false;       ///< UpdatePolicy::rows()
  bool differences = false;  ///< UpdatePolicy::Properties::takesDifferences
};

/// Maximum number of fragments in which trainers exchange the model.
inline constexpr uint64_t kFragmentsMax = 256;

/// How trainers take local steps under a policy that has them. Without an `inner` optimizer, local steps use
/// the configured optimizer, which must be plain SGD. With one, the daemon runs the configured optimizer on
/// what trainers push in place of gradients.
struct LocalPlan {
  uint64_t period = 0;
  double alpha = 0;
  Optimizer exchange;  ///< without `inner`: what the daemon runs on pushes
  std::optional<InnerOptimizer> inner = {};
  bool endsEarly = false;  ///< this and the next three: see LocalSteps
  uint32_t fragments = 1;
  uint32_t delay = 0;
  double blend = 0;
  std::string deltas = {};
  uint32_t updatesPerRound = 1;  ///< 0: equal to the optimizer's delay
};

/// The maximum number of fragments for the plan: each is pushed once per period.
uint64_t maxFragments(const LocalPlan& plan);
/// Why the plan's delay is too long for this number of fragments; empty: it is not. `suffix`: suffix of the
/// text that says where the fragments come from, like ", of which …".
std::string delayError(const LocalPlan& plan, uint64_t fragments, const std::string& suffix = "");

/// What the rounds of a policy require of the number of trainers.
struct RoundPlan {
  uint32_t backupTrainers = 0;  ///< number of trainers that a round closes without
  uint32_t minTrainers = 1;     ///< no round closes before this many were joined at the same time
  bool unbounded = false;       ///< a round stays open as long as one of its gradients is outstanding
  /// The maximum number of gradients that a round compares, given the number of trainers; null: none.
  std::function<uint32_t(uint32_t)> compares = nullptr;
  /// Tensor-name globs of the aggregator; each must match a tensor of the model.
  std::vector<std::string> tensorGlobs = {};
};

/// A policy with its options.
struct PolicyPlan {
  PolicyFactory make;
  /// The optimizer receives other gradients than trainers push, so that a log of pushes cannot be replayed.
  bool changesGradients = false;
  /// The learning rate of an update depends on its staleness.
  bool changesRates = false;
  std::optional<LocalPlan> local = {};
  RoundPlan rounds = {};
  /// How trainers average gradients among themselves; unset if the policy does not have them do so.
  std::optional<AllReduceTerms> allReduce = {};
  /// Why these options do not support embedding tables, for a policy that otherwise does; empty: they do.
  std::string tablesUnsupported = {};
  /// Why these options need the parameter group's whole gradient in one daemon; empty: they do not.
  std::string needsWholeGradient = {};
};

/// One entry of policy_list.h.
struct PolicyEntry {
  std::string_view type;     ///< the value of policy.type
  std::string_view summary;  ///< human-readable
  PolicyTraits traits;
  /// Reads the policy's own options.
  PolicyPlan (*read)(ConfigReader options);
  /// For policies whose local steps cover the whole model while it is exchanged by parameter group: reads a
  /// group's own options, next to those shared with the top level. Null: parameter groups are independent.
  PolicyPlan (*readInGroup)(ConfigReader options, const LocalPlan& topLevel) = nullptr;
};

/// The policy that the configuration selects.
struct PolicyChoice {
  std::string type;
  PolicyTraits traits;
  PolicyPlan plan;
  LocalSteps local;  ///< sent to trainers; without a period if they push gradients
  /// PolicyEntry::readInGroup.
  PolicyPlan (*readInGroup)(ConfigReader options, const LocalPlan& topLevel) = nullptr;
};

/// Reads {"type": …, options…}; errors are recorded in the reader.
PolicyChoice readPolicy(ConfigReader in);
/// Reads a parameter group's {"type": …, options…}. If the top level's policy has readInGroup, the group
/// shares that policy.
PolicyChoice readGroupPolicy(ConfigReader in, const PolicyChoice& topLevel);
/// The types under which trainers run an optimizer of the policy, so that `optimizer` must be given.
std::vector<std::string_view> policiesWithInner();
/// All policy types, one per line, for help texts.
std::string policyHelp();

}  // namespace psd
