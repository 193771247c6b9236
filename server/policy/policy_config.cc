#include "server/policy/policy_config.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "server/policy/list_help.h"
#include "server/policy/policy_list.h"

namespace psd {

namespace {

std::string readType(ObjectReader& in) {
  std::vector<std::string_view> types;
  for (const PolicyEntry& entry : kPolicyList) types.push_back(entry.type);
  return in.choice("type", kPolicyList.front().type, types);
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

PolicyChoice readPolicy(ObjectReader& in) {
  PolicyChoice choice;
  choice.type = readType(in);
  for (const PolicyEntry& entry : kPolicyList) {
    if (entry.type != choice.type) continue;
    choice.traits = entry.traits;
    choice.readInGroup = entry.readInGroup;
    choice.plan = entry.read(in);
  }
  return choice;
}

PolicyChoice readGroupPolicy(ObjectReader& in, const PolicyChoice& topLevel) {
  PolicyChoice choice = topLevel;
  if (readType(in) != topLevel.type) {
    in.fail("type", "must be \"" + topLevel.type +
                        "\", like the top level's policy, under which local steps cover the whole "
                        "model");
  }
  choice.plan = topLevel.readInGroup(in, *topLevel.plan.local);
  return choice;
}

std::string policyHelp() { return helpOf(kPolicyList); }

}  // namespace psd
