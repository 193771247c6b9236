#include "server/policy/policy_config.h"

#include <vector>

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
                        "\", as the top level's is, whose trainers take steps of the whole model by "
                        "themselves");
  }
  choice.plan = topLevel.readInGroup(in, *topLevel.plan.local);
  return choice;
}

std::string policyHelp() { return helpOf(kPolicyList); }

}  // namespace psd
