#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/object_reader.h"
#include "common/types/all_reduce.h"
#include "common/types/local_steps.h"
#include "server/optimizer/optimizer.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Builds the policy once the parameters that it rules are there. Called on any thread, of several at once.
using PolicyFactory = std::function<std::unique_ptr<UpdatePolicy>(const PolicyScope&)>;

/// What tells policies apart beyond their names, for code that must know it before there is a model.
struct PolicyTraits {
  bool readsLive = false;  ///< UpdatePolicy::readsLive()
  /// Where PolicyScope::recorded says so, applies each update to a whole shard under its lock and gives it to
  /// ParameterBlock::endUpdate() or endRacingUpdate().
  bool recordsUpdates = false;
  bool rounds = false;       ///< gradients of several trainers and of all shards of a group make one update
  bool tables = false;       ///< takes rows of embedding tables
  bool differences = false;  ///< UpdatePolicy::pushDifference() takes some
};

/// Into how many fragments at most trainers exchange the model.
inline constexpr uint64_t kFragmentsMax = 256;

/// How trainers take steps by themselves under a policy that lets them. Without an `inner` optimizer their
/// steps are of the configured one, which must be plain SGD; with it the daemon runs the configured one on
/// what they push in place of gradients.
struct LocalPlan {
  uint64_t period = 0;
  double alpha = 0;
  Optimizer exchange;  ///< without `inner`: what the daemon runs on what they push
  std::optional<InnerOptimizer> inner = {};
  bool endsEarly = false;  ///< see LocalSteps, as for the next three
  uint32_t fragments = 1;
  uint32_t delay = 0;
  double blend = 0;
  std::string deltas = {};
  uint32_t arrivals = 1;  ///< 0: as many as the optimizer's delay is
};

/// The most fragments into which trainers exchange the model by that plan: each is pushed once in a period.
uint64_t fragmentsMost(const LocalPlan& plan);
/// Why the plan's delay does not go with so many fragments; empty: it does. `whence`: where they come from,
/// as
/// ", of which …".
std::string delayFault(const LocalPlan& plan, uint64_t fragments, const std::string& whence = "");

/// What the rounds of a policy demand of the number of trainers.
struct RoundPlan {
  uint32_t backupTrainers = 0;  ///< a round ends without so many
  uint32_t trainersMin = 1;     ///< before so many have been in together no round ends
  bool endless = false;         ///< a round stays open for as long as a gradient of it is to come
  /// How many gradients at most a round with so many trainers compares with one another; null: none.
  std::function<uint32_t(uint32_t)> compares = nullptr;
  /// Globs of the aggregator, each of which must match a tensor of the model.
  std::vector<std::string> tensorGlobs = {};
};

/// A policy with the options that were read.
struct PolicyPlan {
  PolicyFactory make;
  /// The optimizer gets other gradients than trainers push: no log replays that.
  bool changesGradients = false;
  std::optional<LocalPlan> local = {};
  RoundPlan rounds = {};
  /// How trainers average gradients among themselves under a policy that has them do so.
  std::optional<AllReduceTerms> allReduce = {};
  /// Why the options do not go with embedding tables, under a policy that else takes them; empty: they do.
  std::string refusesTables = {};
  /// Why the options need a gradient's elements in one daemon, all of the group; empty: they do not.
  std::string needsWholeGradient = {};
};

/// One line of policy_list.h.
struct PolicyEntry {
  std::string_view type;     ///< the value of policy.type
  std::string_view summary;  ///< for people
  PolicyTraits traits;
  /// Reads the policy's own options.
  PolicyPlan (*read)(ObjectReader& options);
  /// Where trainers take steps of the whole model by themselves and exchange it in groups: reads what a group
  /// has of its own, beside what it shares with the top level. Null: groups have nothing to do with another.
  PolicyPlan (*readInGroup)(ObjectReader& options, const LocalPlan& topLevel) = nullptr;
};

/// A policy as the config chose it.
struct PolicyChoice {
  std::string type;
  PolicyTraits traits;
  PolicyPlan plan;
  LocalSteps local;  ///< what trainers are told of it; without a period where they push gradients
  /// PolicyEntry::readInGroup.
  PolicyPlan (*readInGroup)(ObjectReader& options, const LocalPlan& topLevel) = nullptr;
};

/// Reads {"type": …, options…}; problems go to the reader.
PolicyChoice readPolicy(ObjectReader& in);
/// Reads a group's {"type": …, options…}, where the top level chose a policy that has a readInGroup.
PolicyChoice readGroupPolicy(ObjectReader& in, const PolicyChoice& topLevel);
/// All types of policies, a line each, for help texts.
std::string policyHelp();

}  // namespace psd
