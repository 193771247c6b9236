#include "server/policy/aggregator/aggregator.h"

#include <vector>

#include "server/policy/aggregator/aggregator_list.h"
#include "server/policy/list_help.h"

namespace psd {

std::shared_ptr<const Aggregator> readAggregator(ConfigReader in) {
  std::shared_ptr<const Aggregator> aggregator;
  const std::vector<Alternative> known = alternativesOf(kAggregatorList);
  in.alternatives({"type", "How the contributions are combined."}, known.front().name, known,
                  [&aggregator](ConfigReader& options, std::string_view type) {
                    for (const AggregatorEntry& entry : kAggregatorList) {
                      if (entry.type == type) aggregator = entry.read(options);
                    }
                  });
  std::vector<std::string_view> names;
  for (const Alternative& one : known) names.push_back(one.name);
  in.orElse({{"description", "Short for an object with this type alone."}, {"enum", names}});
  return aggregator;
}

std::string aggregatorHelp() { return helpOf(kAggregatorList); }

}  // namespace psd
