#include "server/checkpoint/blame.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "common/config/json_file.h"

namespace psd {
namespace {

constexpr size_t kLargestKept = 10;

double distanceBetween(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); i++) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

}  // namespace

Blame::Blame(const ParameterStore& store)
    : model_(store.model()), layout_(store.model()), tensors_(store.model().tensors.size()) {
  for (size_t i = 0; i < store.shardCount(); i++) ranges_.push_back(store.shard(i).range());
}

void Blame::before(uint32_t, std::span<const float> weights) {
  before_.assign(weights.begin(), weights.end());
}

void Blame::after(const LogRecord& update, uint64_t version, std::span<const float> weights) {
  updates_++;
  const ShardRange& range = ranges_[update.shard.value];
  const uint64_t end = range.begin + range.count;
  for (size_t i = layout_.tensorAt(range.begin); i < tensors_.size(); i++) {
    const TensorPlace& place = layout_.places()[i];
    if (place.begin >= end) break;
    const uint64_t first = std::max(place.begin, range.begin);
    const uint64_t last = std::min(place.begin + place.count, end);
    if (first >= last) continue;
    const double distance = distanceBetween(std::span(before_).subspan(first - range.begin, last - first),
                                            weights.subspan(first - range.begin, last - first));
    keep(tensors_[i], distance, update, version);
  }
}

void Blame::keep(Tensor& tensor, double distance, const LogRecord& update, uint64_t version) {
  std::vector<uint32_t> ranks;
  for (const UpdateSource& source : update.sources) ranks.push_back(source.rank.value);
  Sum& sum = tensor.byRank[ranks];
  sum.updates++;
  sum.distance += distance;
  // NaN, which does not compare, ranks as the largest move.
  const auto further = [](double one, double other) {
    return std::isnan(one) ? !std::isnan(other) : one > other;
  };
  const auto place = std::ranges::find_if(tensor.largest,
                                          [&](const Move& move) { return further(distance, move.distance); });
  if (place == tensor.largest.end() && tensor.largest.size() == kLargestKept) return;
  Move move{distance, update.shard.value, update.scalars.number, version, {}};
  for (const UpdateSource& source : update.sources) {
    move.sources.push_back({source.rank.value, source.step.value, source.staleness});
  }
  tensor.largest.insert(place, std::move(move));
  if (tensor.largest.size() > kLargestKept) tensor.largest.pop_back();
}

std::string Blame::json() const {
  using Json = nlohmann::ordered_json;
  Json json = {{"model", model_.name}, {"updates", updates_}, {"tensors", Json::array()}};
  for (size_t i = 0; i < tensors_.size(); i++) {
    Json moved = Json::array(), ranks = Json::array();
    for (const Move& move : tensors_[i].largest) {
      Json sources = Json::array();
      for (const Source& source : move.sources) {
        sources.push_back({{"rank", source.rank}, {"step", source.step}, {"staleness", source.staleness}});
      }
      moved.push_back({{"distance", move.distance},
                       {"shard", move.shard},
                       {"update", move.update},
                       {"version", move.version},
                       {"sources", std::move(sources)}});
    }
    for (const auto& [who, sum] : tensors_[i].byRank) {
      ranks.push_back({{"ranks", who}, {"updates", sum.updates}, {"distance", sum.distance}});
    }
    json["tensors"].push_back(
        {{"name", model_.tensors[i].name}, {"largest", std::move(moved)}, {"by_rank", std::move(ranks)}});
  }
  return jsonText(json, 2);
}

}  // namespace psd
