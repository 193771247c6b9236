#include "server/config/parameter_groups.h"

#include <algorithm>

#include <fnmatch.h>

#include "common/text/text.h"
#include "server/optimizer/optimizer_config.h"

namespace psd {
namespace {

bool matches(const GroupConfig& group, const std::string& tensor) {
  return std::any_of(group.match.begin(), group.match.end(),
                     [&](const std::string& glob) { return fnmatch(glob.c_str(), tensor.c_str(), 0) == 0; });
}

/// What keeps the glob from being one; empty: nothing.
std::string globFault(const std::string& glob) {
  if (glob.empty()) return "holds \"\", which matches no tensor; write names, as \"fc*\"";
  for (size_t i = 0; i < glob.size(); i++) {
    if (glob[i] == '\\') {
      i++;  // what follows stands for itself
      continue;
    }
    if (glob[i] != '[') continue;
    const size_t first = i + 1 + (glob.find_first_of("!^", i + 1) == i + 1);
    i = glob.find(']', first + 1);  // as the first character ']' stands for itself
    if (i == std::string::npos) return "\"" + glob + "\" lacks the ']' for its '['; \"\\\\[\" is a plain one";
  }
  return "";
}

std::string describe(const std::vector<GroupConfig>& groups, std::string (*text)(const GroupConfig&)) {
  if (groups.size() == 1) return text(groups.front());
  return joined(groups, ", ", [text](const GroupConfig& group) { return group.name() + ": " + text(group); });
}

/// What trainers that take steps by themselves run: they were configured with nothing else.
Optimizer plainSteps(double rate) { return {Sgd{}, rate, {}}; }

/// Where trainers take the steps of the group's optimizer by themselves, the daemon runs that of the
/// exchange.
void handOver(ObjectReader& in, GroupConfig& group) {
  const auto& local = group.policy.plan.local;
  if (!local) return;
  const Optimizer plain = plainSteps(group.optimizer.fullLearningRate);
  if (group.optimizer.describe() != plain.describe()) {
    in.fail("optimizer", "must be sgd with nothing but lr under policy " + group.policy.type +
                             ", whose trainers take plain steps by themselves, not '" +
                             group.optimizer.describe() + "'");
  }
  group.policy.local = {local->period, group.optimizer.fullLearningRate, local->alpha};
  group.optimizer = local->exchange;
}

}  // namespace

std::string GroupConfig::name() const { return match.empty() ? "others" : joined(match, " "); }

std::vector<GroupConfig> readGroups(ObjectReader& in) {
  GroupConfig others;
  ObjectReader policy = in.object("policy"), optimizer = in.object("optimizer");
  others.policy = readPolicy(policy);
  others.optimizer = readOptimizer(optimizer);
  std::vector<GroupConfig> groups;
  for (ObjectReader& entry : in.objects("groups")) {
    GroupConfig group = others;
    group.match = entry.textOrTexts("match");
    if (group.match.empty()) entry.fail("match", "is needed: the names of tensors, as \"fc*\"");
    for (const std::string& glob : group.match) {
      if (const std::string fault = globFault(glob); !fault.empty()) entry.fail("match", fault);
    }
    if (entry.has("policy")) {
      ObjectReader own = entry.object("policy");
      group.policy = readPolicy(own);
    }
    if (entry.has("optimizer")) {
      ObjectReader own = entry.object("optimizer");
      group.optimizer = readOptimizer(own);
    }
    groups.push_back(std::move(group));
  }
  groups.push_back(std::move(others));
  for (GroupConfig& group : groups) {
    handOver(in, group);
    if (groups.size() > 1 && group.policy.plan.local) {
      in.fail("groups", "do not go with policy " + group.policy.type +
                            ", whose trainers take steps of the whole model by themselves");
    }
  }
  return groups;
}

Result<std::vector<uint32_t>> assignGroups(const ModelSpec& model, const std::vector<GroupConfig>& groups) {
  const size_t last = groups.size() - 1;
  std::vector<uint32_t> groupOfTensor;
  std::vector<uint64_t> taken(groups.size());
  for (const TensorSpec& tensor : model.tensors) {
    size_t group = 0;
    while (group < last && !matches(groups[group], tensor.name)) group++;
    groupOfTensor.push_back(static_cast<uint32_t>(group));
    taken[group]++;
  }
  for (size_t i = 0; i < last; i++) {
    if (taken[i] > 0) continue;
    const bool shadowed =
        std::any_of(model.tensors.begin(), model.tensors.end(),
                    [&](const TensorSpec& tensor) { return matches(groups[i], tensor.name); });
    return Error{ErrorCode::invalidArgument,
                 "groups[" + std::to_string(i) + "].match: " + groups[i].name() +
                     " matches no tensor of model '" + model.name + "'" +
                     (shadowed ? " that the groups before it leave"
                               : ", whose tensors are " + model.tensors.front().name + " ... " +
                                     model.tensors.back().name)};
  }
  return groupOfTensor;
}

std::string describePolicies(const std::vector<GroupConfig>& groups) {
  return describe(groups, [](const GroupConfig& group) { return group.policy.type; });
}

std::string describeOptimizers(const std::vector<GroupConfig>& groups) {
  return describe(groups, [](const GroupConfig& group) {
    const LocalSteps& local = group.policy.local;
    return (local.period == 0 ? group.optimizer : plainSteps(local.rate)).describe();
  });
}

}  // namespace psd
