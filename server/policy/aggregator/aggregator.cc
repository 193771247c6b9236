#include "server/policy/aggregator/aggregator.h"

#include <vector>

#include "server/policy/aggregator/aggregator_list.h"
#include "server/policy/list_help.h"

namespace psd {

std::shared_ptr<const Aggregator> readAggregator(ObjectReader& in) {
  std::vector<std::string_view> types;
  for (const AggregatorEntry& entry : kAggregatorList) types.push_back(entry.type);
  const std::string type = in.choice("type", types.front(), types);
  for (const AggregatorEntry& entry : kAggregatorList) {
    if (entry.type == type) return entry.read(in);
  }
  return kAggregatorList.front().read(in);  // unreachable: choice() returns a listed type
}

std::string aggregatorHelp() { return helpOf(kAggregatorList); }

}  // namespace psd
