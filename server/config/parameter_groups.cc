#include "server/config/parameter_groups.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/config/globs.h"
#include "common/plan/fragment_plan.h"
#include "common/plan/model_partitions.h"
#include "common/text/text.h"
#include "server/optimizer/optimizer_config.h"

namespace psd {
namespace {

std::vector<std::string> namesOf(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : model.tensors) names.push_back(tensor.name);
  for (const TableSpec& table : model.tables) names.push_back(table.name);
  return names;
}

/// Why the policy of a group cannot have its optimizer; empty: it can.
std::string whyNotRates(const GroupConfig& group) {
  if (!group.policy.plan.changesRates || !group.optimizer.derivesWeights()) return "";
  return fmt::format("cannot be combined with {}, whose state holds for one learning rate; staleness.max can",
                     group.optimizer.name());
}

Status checkRates(const std::vector<GroupConfig>& groups, size_t group) {
  const std::string why = whyNotRates(groups[group]);
  if (why.empty()) return {};
  return {ErrorCode::invalidArgument, pathOf(groups, group, "policy") + ".staleness.rate: " + why};
}

/// Whether the optimizer of a group supports this tensor.
Status checkTensor(const TensorSpec& tensor, const std::vector<GroupConfig>& groups, size_t group) {
  const Optimizer& optimizer = groups[group].optimizer;
  PSD_RETURN_IF_ERROR(checkRates(groups, group));
  if (!optimizer.rowsOnly()) return {};
  return {
      ErrorCode::invalidArgument,
      fmt::format("{}: {} is for embedding tables alone, and '{}' is a tensor; give the tables a group of "
                  "their own",
                  pathOf(groups, group, "optimizer"), optimizer.name(), tensor.name)};
}

/// Whether the model has each tensor that a group's aggregator names.
Status checkNamed(const ModelSpec& model, const std::vector<GroupConfig>& groups) {
  for (size_t i = 0; i < groups.size(); i++) {
    for (const std::string& glob : groups[i].policy.plan.rounds.tensorGlobs) {
      if (std::ranges::any_of(model.tensors,
                              [&](const TensorSpec& tensor) { return anyMatches({glob}, tensor.name); })) {
        continue;
      }
      return {ErrorCode::invalidArgument,
              fmt::format("{}.aggregator.direct: \"{}\" matches no tensor of model '{}'{}",
                          pathOf(groups, i, "policy"), glob, model.name,
                          model.tensors.empty()
                              ? std::string()
                              : fmt::format(", whose tensors are {} ... {}", model.tensors.front().name,
                                            model.tensors.back().name))};
    }
  }
  return {};
}

/// Whether the policy and the optimizer of a group support this table.
Status checkTable(const TableSpec& table, const std::vector<GroupConfig>& groups, size_t group) {
  const PolicyChoice& policy = groups[group].policy;
  const std::string place = pathOf(groups, group, "policy");
  if (!policy.traits.tables) {
    return {
        ErrorCode::invalidArgument,
        fmt::format(
            "{}: policy {} is not for embedding tables, and '{}' is one{}", place, policy.type, table.name,
            policy.plan.local ? "" : "; give it a group with hogwild, locked, bounded_staleness or sync")};
  }
  PSD_RETURN_IF_ERROR(checkRates(groups, group));
  if (groups[group].optimizer.derivesWeights() && table.initial.kind != RowInitial::Kind::zero) {
    return {
        ErrorCode::invalidArgument,
        fmt::format("{}: rows begin at 0 under {}, whose weights are a function of its state, and those of "
                    "table '{}' begin at other values; declare the table with rows from zero, or give it a "
                    "group with another optimizer",
                    pathOf(groups, group, "optimizer"), groups[group].optimizer.name(), table.name)};
  }
  if (groups[group].optimizer.tensorsOnly()) {
    return {ErrorCode::invalidArgument,
            fmt::format("{}: {} is for tensors alone, and '{}' is an embedding table, whose rows miss the "
                        "updates that do not touch them; give the tables a group of their own",
                        pathOf(groups, group, "optimizer"), groups[group].optimizer.name(), table.name)};
  }
  if (policy.plan.tablesUnsupported.empty()) return {};
  return {ErrorCode::invalidArgument, fmt::format("{}: table '{}' cannot be combined with it: {}", place,
                                                  table.name, policy.plan.tablesUnsupported)};
}

/// Under allreduce trainers have the one version of the tensors that they average: it applies to all of them.
Status checkAveraged(const ModelSpec& model, const std::vector<GroupConfig>& groups,
                     const std::vector<uint32_t>& ofTensor) {
  size_t averaging = 0;
  while (averaging < groups.size() && !groups[averaging].policy.plan.allReduce) averaging++;
  if (averaging == groups.size()) return {};
  if (ofTensor.empty()) {
    return {ErrorCode::invalidArgument,
            fmt::format("{}: allreduce is for tensors, of which model '{}' has none",
                        pathOf(groups, averaging, "policy"), model.name)};
  }
  for (size_t i = 0; i < ofTensor.size(); i++) {
    if (groups[ofTensor[i]].policy.plan.allReduce && ofTensor[i] == ofTensor.front()) continue;
    return {
        ErrorCode::invalidArgument,
        fmt::format("{}: all tensors of a model are in one group under allreduce, or none is, and '{}' is in "
                    "the group of {}; embedding tables go by other policies",
                    pathOf(groups, averaging, "policy"), model.tensors[i].name,
                    pathOf(groups, ofTensor[i], "policy"))};
  }
  return {};
}

std::string describe(const std::vector<GroupConfig>& groups, std::string (*text)(const GroupConfig&)) {
  if (groups.size() == 1 || groups.front().planned) return text(groups.front());
  return joined(groups, ", ", [text](const GroupConfig& group) { return group.name() + ": " + text(group); });
}

/// The optimizer of local steps without `inner`.
Optimizer plainSteps(double rate) { return {Sgd{}, rate, {}}; }

/// The updates that count as a round of the run.
uint32_t arrivalsOf(const LocalPlan& local, const Optimizer& optimizer) {
  if (local.updatesPerRound != 0) return local.updatesPerRound;
  const auto* const delayed = std::get_if<DelayedNesterov>(&optimizer.algorithm);
  return delayed != nullptr ? static_cast<uint32_t>(delayed->delay) : 1;
}

/// Declares under which policies `optimizer` is required; see handOver().
void describeRequired(ConfigReader& in) {
  if (!in.describes()) return;
  const std::vector<std::string_view> types = policiesWithInner();
  in.rule({{"if",
            {{"properties",
              {{"policy", {{"properties", {{"type", {{"enum", types}}}}}, {"required", {"type"}}}}}},
             {"required", {"policy"}}}},
           {"then", {{"required", {"optimizer"}}}}});
}

/// Under a policy of local steps: without an inner optimizer the trainers run the group's optimizer and the
/// daemon that of the exchange; with one the daemon runs the group's.
void handOver(ConfigReader& in, GroupConfig& group) {
  const auto& local = group.policy.plan.local;
  if (!local) return;
  if (local->inner) {
    if (!in.has("optimizer")) {
      in.fail(
          "optimizer",
          "must be given under policy " + group.policy.type +
              ": it steps with what trainers come to in `period` steps of `inner`; to begin "
              "with, " +
              (group.policy.traits.rounds
                   ? "{\"type\": \"sgd\", \"lr\": 0.7, \"momentum\": 0.9, \"nesterov\": true}"
                   : "{\"type\": \"delayed_nesterov\", \"lr\": 0.7, \"momentum\": 0.9, \"delay\": N} for N "
                     "trainers"));
    }
    group.policy.local = {.period = local->period,
                          .inner = local->inner,
                          .endsEarly = local->endsEarly,
                          .fragments = local->fragments,
                          .delay = local->delay,
                          .blend = local->blend,
                          .deltas = local->deltas,
                          .updatesPerRound = arrivalsOf(*local, group.optimizer)};
    return;
  }
  const Optimizer plain = plainSteps(group.optimizer.fullLearningRate);
  if (group.optimizer.describe() != plain.describe()) {
    in.fail("optimizer", "must be sgd with nothing but lr under policy " + group.policy.type +
                             ", whose trainers take plain steps by themselves, not '" +
                             group.optimizer.describe() + "'");
  }
  group.policy.local = {
      .period = local->period, .rate = group.optimizer.fullLearningRate, .alpha = local->alpha};
  group.optimizer = local->exchange;
}

/// Policies of local steps rule the whole model, not a group of it.
void refuseLocalSteps(ConfigReader& in, const std::vector<GroupConfig>& groups) {
  for (size_t i = 0; i < groups.size(); i++) {
    const PolicyChoice& policy = groups[i].policy;
    if (!policy.plan.local) continue;
    if (policy.readInGroup) {
      in.fail(pathOf(groups, i, "policy"), "policy " + policy.type +
                                               " is for the whole model, whose trainers take steps by "
                                               "themselves: give it at the top level too");
    } else {
      in.fail("groups", "cannot be combined with policy " + policy.type +
                            ", whose trainers take steps of the whole model by themselves");
    }
  }
}

/// Makes each group a fragment of the model that trainers exchange.
void exchangeInGroups(ConfigReader& in, std::vector<GroupConfig>& groups) {
  const LocalPlan& plan = *groups.back().policy.plan.local;
  const size_t count = groups.size();
  if (plan.fragments > 1) {
    in.fail("policy.fragments",
            "cannot be combined with `groups`, each of which is a fragment, as is what they "
            "leave to the top level");
  } else if (count > maxFragments(plan)) {
    in.fail("groups",
            fmt::format("and what they leave are {} fragments, and may be at most policy.period ({}) "
                        "and {}: each is pushed once per period",
                        count, plan.period, kFragmentsMax));
  } else if (const std::string fault =
                 delayError(plan, count, fmt::format(", of which the groups make {}", count));
             !fault.empty()) {
    in.fail("policy.delay", fault);
  }
  const bool early =
      std::ranges::any_of(groups, [](const GroupConfig& group) { return group.policy.local.endsEarly; });
  for (uint32_t i = 0; i < count; i++) {
    groups[i].fragment = i;
    groups[i].policy.local.fragments = static_cast<uint32_t>(count);
    groups[i].policy.local.fragmentPerGroup = true;
    groups[i].policy.local.endsEarly = early;  // of one fragment at least
  }
}

/// Reads an entry of `groups`; `group` has the policy and the optimizer of the top level.
void readGroup(ConfigReader& entry, GroupConfig& group) {
  entry.match(
      {"match",
       "Names of tensors and tables, as globs: `*`, `?`, `[abc]`. Each group must match one of the model."},
      group.match, "the names of tensors, as \"fc*\"");
  const Key policy{
      "policy",
      "Policy of the group; by default the top level's. Under `diloco` it is `diloco` too, without the "
      "keys that rule the trainers' steps.",
      Key::kLive};
  if (auto own = entry.optionalObject(policy)) group.policy = readGroupPolicy(*own, group.policy);
  const Key optimizer{"optimizer", "Optimizer of the group; by default the top level's.", Key::kLive};
  if (auto own = entry.optionalObject(optimizer)) {
    group.optimizer = readOptimizer(*own, OptimizerUse::rows);
    group.optimizerGiven = true;
  }
}

/// A group for each fragment, of a model without tables, or of a partition of one.
Result<GroupsOfModel> assignFragments(const ModelSpec& model, const std::vector<GroupConfig>& groups) {
  for (const TensorSpec& tensor : model.tensors) PSD_RETURN_IF_ERROR(checkTensor(tensor, groups, 0));
  for (const TableSpec& table : model.tables) PSD_RETURN_IF_ERROR(checkTable(table, groups, 0));
  const bool told = model.partition.isWhole() || model.whole;
  const size_t tensors = model.whole ? model.whole->size() : model.tensors.size();
  if (told && tensors < groups.size()) {
    return Error{
        ErrorCode::invalidArgument,
        fmt::format("policy.fragments: {}, and model '{}' has {} tensors, each of which is in one of "
                    "them; take fewer",
                    groups.size(), model.name, tensors)};
  }
  auto fragments = fragmentsOf(model, static_cast<uint32_t>(groups.size()));
  if (!fragments.ok()) return Error{fragments.error().code, "policy.fragments: " + fragments.message()};
  return GroupsOfModel{*std::move(fragments), {}};
}

}  // namespace

std::string pathOf(const std::vector<GroupConfig>& groups, size_t group, std::string_view key) {
  const bool topLevel = groups[group].planned || group + 1 == groups.size();
  return topLevel ? std::string(key) : fmt::format("groups[{}].{}", group, key);
}

std::string GroupConfig::name() const {
  if (planned) return fmt::format("fragment {}", *fragment);
  return match.empty() ? "others" : joined(match, " ");
}

std::vector<GroupConfig> readGroups(ConfigReader& in) {
  GroupConfig others;
  // Both declared before the keys in them, whose errors may name either.
  ConfigReader policy = in.object({"policy", "How updates from several trainers are combined.", Key::kLive});
  ConfigReader optimizer = in.object({"optimizer",
                                      "How a gradient changes the parameters. Required under `diloco` and "
                                      "`async_diloco`. Without it, the first trainer's "
                                      "optimizer is used, and every push carries its hyperparameters.",
                                      Key::kLive});
  describeRequired(in);
  others.policy = readPolicy(policy);
  others.optimizer = readOptimizer(optimizer, OptimizerUse::rows);
  others.optimizerGiven = in.has("optimizer");
  std::vector<GroupConfig> groups;
  const Key key{
      "groups",
      "Tensors and tables with a policy or an optimizer of their own. Each belongs to the first group that "
      "matches; the others have the top level's."};
  for (ConfigReader& entry : in.objects(key)) {
    GroupConfig& group = groups.emplace_back(others);
    readGroup(entry, group);
  }
  if (in.describes()) groups.clear();
  groups.push_back(std::move(others));
  for (GroupConfig& group : groups) handOver(in, group);
  for (size_t i = 0; i < groups.size(); i++) {
    if (const std::string why = whyNotRates(groups[i]); !why.empty())
      in.fail(pathOf(groups, i, "policy") + ".staleness.rate", why);
  }
  const PolicyChoice& topLevel = groups.back().policy;
  if (groups.size() > 1) {
    if (topLevel.readInGroup) {
      exchangeInGroups(in, groups);
    } else {
      refuseLocalSteps(in, groups);
    }
  } else if (const uint32_t fragments = topLevel.local.fragments; fragments > 1) {
    groups.resize(fragments, groups.front());
    for (uint32_t i = 0; i < fragments; i++) {
      groups[i].fragment = i;
      groups[i].planned = true;
    }
  }
  return groups;
}

Result<GroupsOfModel> assignGroups(const ModelSpec& model, const std::vector<GroupConfig>& groups) {
  if (model.partition.isWhole()) PSD_RETURN_IF_ERROR(checkNamed(model, groups));
  if (groups.front().planned) return assignFragments(model, groups);
  const size_t last = groups.size() - 1;
  GroupsOfModel found;
  std::vector<uint64_t> taken(groups.size());
  const auto assign = [&](const std::string& name) {
    size_t group = 0;
    while (group < last && !anyMatches(groups[group].match, name)) group++;
    taken[group]++;
    return static_cast<uint32_t>(group);
  };
  for (const TensorSpec& tensor : model.tensors) {
    const bool whole = model.partition.isWhole();
    found.ofTensor.push_back(assign(whole ? tensor.name : std::string(wholeName(tensor.name))));
    PSD_RETURN_IF_ERROR(checkTensor(tensor, groups, found.ofTensor.back()));
  }
  PSD_RETURN_IF_ERROR(checkAveraged(model, groups, found.ofTensor));
  for (const TableSpec& table : model.tables) {
    found.ofTable.push_back(assign(table.name));
    PSD_RETURN_IF_ERROR(checkTable(table, groups, found.ofTable.back()));
  }
  if (!model.partition.isWhole()) return found;  // another daemon may have what a group takes
  if (groups.back().fragment && taken[last] == 0) {
    return Error{
        ErrorCode::invalidArgument,
        fmt::format("groups: they leave no tensor of model '{}' to the top level, which is a fragment "
                    "too; give the last group's tensors to it",
                    model.name)};
  }
  const std::vector<std::string> names = namesOf(model);
  for (size_t i = 0; i < last; i++) {
    if (taken[i] > 0) continue;
    const bool shadowed = std::ranges::any_of(
        names, [&](const std::string& name) { return anyMatches(groups[i].match, name); });
    return Error{ErrorCode::invalidArgument,
                 fmt::format("groups[{}].match: {} matches no tensor{} of model '{}'{}", i, groups[i].name(),
                             model.tables.empty() ? "" : " or table", model.name,
                             shadowed ? " that the groups before it leave"
                                      : ", whose " + std::string(model.tables.empty() ? "tensors" : "names") +
                                            " are " + names.front() + " ... " + names.back())};
  }
  return found;
}

bool takesTrainersOptimizer(const std::vector<GroupConfig>& groups) {
  return std::ranges::none_of(
      groups, [](const GroupConfig& group) { return group.optimizerGiven || group.policy.plan.local; });
}

void adoptOptimizers(std::vector<GroupConfig>& groups, const std::vector<Optimizer>& optimizers) {
  if (!takesTrainersOptimizer(groups) || optimizers.empty()) return;
  const auto sameAsFirst = [&](const Optimizer& each) {
    return writeOptimizer(each) == writeOptimizer(optimizers.front());
  };
  if (optimizers.size() != groups.size() && !std::ranges::all_of(optimizers, sameAsFirst)) return;
  for (size_t i = 0; i < groups.size(); i++) {
    groups[i].optimizer = optimizers.size() == groups.size() ? optimizers[i] : optimizers.front();
  }
}

std::optional<AllReduceTerms> allReduceOf(const std::vector<GroupConfig>& groups) {
  for (const GroupConfig& group : groups) {
    if (group.policy.plan.allReduce) return group.policy.plan.allReduce;
  }
  return {};
}

std::string describePolicies(const std::vector<GroupConfig>& groups) {
  const std::string all = describe(groups, [](const GroupConfig& group) { return group.policy.type; });
  return groups.front().planned ? fmt::format("{} in {} fragments", all, groups.size()) : all;
}

std::string describeOptimizers(const std::vector<GroupConfig>& groups) {
  return describe(groups, [](const GroupConfig& group) {
    const LocalSteps& local = group.policy.local;
    if (local.inner) return group.optimizer.describe() + ", in trainers " + local.inner->describe();
    return (local.period == 0 ? group.optimizer : plainSteps(local.rate)).describe();
  });
}

}  // namespace psd
