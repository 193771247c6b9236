#include "server/policy/policy_config.h"

#include <vector>

#include "server/policy/list_help.h"
#include "server/policy/policy_list.h"

namespace psd {

PolicyChoice readPolicy(ObjectReader& in) {
  std::vector<std::string_view> types;
  for (const PolicyEntry& entry : kPolicyList) types.push_back(entry.type);
  PolicyChoice choice;
  choice.type = in.choice("type", kPolicyList.front().type, types);
  for (const PolicyEntry& entry : kPolicyList) {
    if (entry.type != choice.type) continue;
    choice.traits = entry.traits;
    choice.plan = entry.read(in);
  }
  return choice;
}

std::string policyHelp() { return helpOf(kPolicyList); }

}  // namespace psd
