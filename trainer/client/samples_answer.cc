#include "trainer/client/samples_answer.h"

#include <algorithm>
#include <set>
#include <vector>

#include "common/wire/convert.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {
namespace {

/// The elements of the marked shards, adjacent ones as one range.
std::vector<ElementRange> elementsOf(const ShardPlan& plan, capnp::List<bool>::Reader marked) {
  std::vector<ElementRange> ranges;
  for (kj::uint i = 0; i < std::min<size_t>(marked.size(), plan.shards.size()); i++) {
    if (!marked[i]) continue;
    const ShardRange& shard = plan.shards[i];
    if (!ranges.empty() && ranges.back().begin + ranges.back().count == shard.begin) {
      ranges.back().count += shard.count;
    } else {
      ranges.push_back({shard.begin, shard.count});
    }
  }
  return ranges;
}

/// The tables of the marked row shards, whose marks follow those of the plan's shards.
std::vector<uint32_t> tablesOf(const SessionTerms& terms, capnp::List<bool>::Reader marked) {
  std::set<uint32_t> tables;
  for (const RowShardTerms& shard : terms.rowShards) {
    if (shard.id.value < marked.size() && marked[shard.id.value])
      tables.insert(shard.tables.begin(), shard.tables.end());
  }
  return {tables.begin(), tables.end()};
}

}  // namespace

Result<AssignedSamples> readSamples(schema::SamplesResult::Reader answer, const SessionTerms& terms,
                                    bool sized) {
  using What = AssignedSamples::What;
  if (answer.isError()) return sanitized(wire::readError(answer.getError()));
  if (answer.isFinished()) return AssignedSamples{.what = What::finished};
  if (!answer.isAssigned()) return AssignedSamples{};
  const auto assigned = answer.getAssigned();
  const auto scaledByTrainer = assigned.getScaledByTrainer();
  if (scaledByTrainer.size() != (sized ? terms.blockCount() : 0)) {
    return Error{ErrorCode::protocolMismatch, "the daemon does not say which shards weigh gradients"};
  }
  return AssignedSamples{What::range,
                         assigned.getEpoch(),
                         assigned.getBegin(),
                         assigned.getCount(),
                         elementsOf(terms.plan, scaledByTrainer),
                         tablesOf(terms, scaledByTrainer),
                         assigned.getMixed()};
}

}  // namespace psd
