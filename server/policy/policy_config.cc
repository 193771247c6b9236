#include "server/policy/policy_config.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "server/policy/list_help.h"
#include "server/policy/policy_list.h"

namespace psd {

namespace {

constexpr Key kTypeKey{"type", "How updates from several trainers are combined."};

const PolicyEntry& entryOf(std::string_view type) {
  return *std::ranges::find(kPolicyList, type, &PolicyEntry::type);
}

/// Declares what a group may have: all policies but those whose trainers take steps of the whole model.
void describeGroupPolicy(ConfigReader& in) {
  std::vector<Alternative> known = alternativesOf(kPolicyList);
  std::erase_if(known, [](const Alternative& one) {
    const PolicyEntry& entry = entryOf(one.name);
    return entry.readInGroup == nullptr && entry.read(ConfigReader::describing()).local.has_value();
  });
  in.alternatives(kTypeKey, kPolicyList.front().type, known,
                  [](ConfigReader& options, std::string_view type) {
                    const PolicyEntry& entry = entryOf(type);
                    if (entry.readInGroup != nullptr) {
                      entry.readInGroup(options, LocalPlan());
                    } else {
                      entry.read(options);
                    }
                  });
}

}  // namespace

uint64_t maxFragments(const LocalPlan& plan) { return std::min(plan.period, kFragmentsMax); }

std::string delayError(const LocalPlan& plan, uint64_t fragments, const std::string& suffix) {
  const uint64_t slot = plan.period / fragments;
  if (plan.delay < slot) return "";
  return fmt::format(
      "must be below period / fragments ({}){}: the result of a push is applied before the "
      "next push",
      slot, suffix);
}

PolicyChoice readPolicy(ConfigReader in) {
  PolicyChoice choice;
  in.alternatives(kTypeKey, kPolicyList.front().type, alternativesOf(kPolicyList),
                  [&choice](ConfigReader& options, std::string_view type) {
                    const PolicyEntry& entry = entryOf(type);
                    choice.type = type;
                    choice.traits = entry.traits;
                    choice.readInGroup = entry.readInGroup;
                    choice.plan = entry.read(options);
                  });
  return choice;
}

PolicyChoice readGroupPolicy(ConfigReader in, const PolicyChoice& topLevel) {
  if (in.describes()) {
    describeGroupPolicy(in);
    return topLevel;
  }
  if (!topLevel.readInGroup) return readPolicy(in);
  PolicyChoice choice = topLevel;
  std::vector<std::string_view> types;
  for (const PolicyEntry& entry : kPolicyList) types.push_back(entry.type);
  if (in.values().choice(kTypeKey.name, types.front(), types) != topLevel.type) {
    in.fail("type", "must be \"" + topLevel.type +
                        "\", like the top level's policy, under which local steps cover the whole "
                        "model");
  }
  choice.plan = topLevel.readInGroup(in, *topLevel.plan.local);
  return choice;
}

std::vector<std::string_view> policiesWithInner() {
  std::vector<std::string_view> types;
  for (const PolicyEntry& entry : kPolicyList) {
    const auto local = entry.read(ConfigReader::describing()).local;
    if (local && local->inner) types.push_back(entry.type);
  }
  return types;
}

std::string policyHelp() { return helpOf(kPolicyList); }

}  // namespace psd
