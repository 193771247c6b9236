#include "server/policy/aggregator/aggregator.h"

#include <vector>

#include "common/text/text.h"
#include "server/policy/aggregator/aggregator_list.h"
#include "server/policy/list_help.h"

namespace psd {

namespace {

std::vector<std::string_view> aggregatorNames() {
  std::vector<std::string_view> all;
  for (const AggregatorEntry& entry : kAggregatorList) all.push_back(entry.type);
  return all;
}

}  // namespace

std::shared_ptr<const Aggregator> readAggregator(ConfigReader in) {
  std::shared_ptr<const Aggregator> aggregator;
  const std::vector<Alternative> known = alternativesOf(kAggregatorList);
  in.alternatives({"type", "How the contributions are combined."}, known.front().name, known,
                  [&aggregator](ConfigReader& options, std::string_view type) {
                    for (const AggregatorEntry& entry : kAggregatorList) {
                      if (entry.type == type) aggregator = entry.read(options);
                    }
                  });
  in.orElse({{"description", "Short for an object with this type alone."}, {"enum", aggregatorNames()}});
  return aggregator;
}

std::string aggregatorForms() {
  return "an object with a type, or a type alone: " + joined(aggregatorNames(), ", ");
}

std::string aggregatorHelp() { return helpOf(kAggregatorList); }

}  // namespace psd
