// The status of a ModelHost.

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/model/model_host.h"
#include "server/model/rounds_status.h"
#include "server/policy/policy_capabilities.h"
#include "server/store/rows/row_heat.h"

namespace psd {
namespace {

/// Scans all rows, which takes a while.
HotRowsStatus hottestRowsOf(const ParameterStore& store) {
  constexpr size_t kRows = 10;  // per table
  std::vector<std::vector<HotRow>> hottest(store.model().tables.size());
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    for (const RowShard::Table& table : store.rowShard(i).tables()) {
      const std::vector<HotRow> own = hottestRows(*table.rows, kRows);
      hottest[table.index].insert(hottest[table.index].end(), own.begin(), own.end());
    }
  }
  HotRowsStatus status;
  for (size_t i = 0; i < hottest.size(); i++) {
    std::ranges::stable_sort(hottest[i], std::greater(), [](const HotRow& row) { return row.meta.count(); });
    hottest[i].resize(std::min(hottest[i].size(), kRows));
    auto& table = status.tables.emplace_back();
    table.name = store.model().tables[i].name;
    for (const HotRow& row : hottest[i]) {
      table.rows.push_back({std::to_string(row.id), row.meta.count(), row.meta.version()});
    }
  }
  return status;
}

}  // namespace

void ModelHost::fillStatus(DaemonStatus& status) const {
  status.policy = describePolicies(config_->groups);
  status.optimizer = describeOptimizers(servedGroups());
  status.held.staged = staging_->lentBytes();
  if (!model_) return;
  const ModelSpec& model = model_->store->model();
  status.model = {.name = model.name,
                  .parameters = model.parameterCount(),
                  .tensors = model.tensors.size(),
                  .ready = ready_};
  if (const auto buffers = model_->store->buffers().get().set) {
    status.model->buffers = buffers->entries().size();
    status.model->bufferBytes = buffers->values().size();
  }
  status.shards = shardsStatus();
  status.tables = tablesStatus();
  status.rowShards = rowShardsStatus();
  status.waiting = waitingStatus();
  status.rounds = roundsStatus();
  status.learningRates = learningRates();
}

std::vector<LearningRateStatus> ModelHost::learningRates() const {
  struct Rates {
    std::optional<double> pushed;
    double own = 0;
  };
  const ParameterStore& store = *model_->store;
  std::map<uint32_t, Rates> rates;  // the largest, by group
  for (size_t i = 0; i < store.blockCount(); i++) {
    const ParameterBlock& block = store.block(i);
    Rates& of = rates[block.group()];
    of.pushed = std::max(of.pushed, block.pushedRate());  // nothing is less than any number
    const LocalSteps& local = config_->groups[block.group()].policy.local;
    const bool inTrainers = local.period > 0 && !local.inner;  // plain steps, see describeOptimizers()
    of.own =
        std::max(of.own, inTrainers ? local.rate
                                    : store.optimizer(block.group()).learningRate(block.version().value + 1));
  }
  std::vector<LearningRateStatus> out;
  for (const auto& [group, of] : rates)
    out.push_back({config_->groups[group].name(), of.pushed.value_or(of.own)});
  return out;
}

std::vector<ShardStatus> ModelHost::shardsStatus() const {
  std::vector<ShardStatus> out;
  const ParameterStore& store = *model_->store;
  for (size_t i = 0; i < store.shardCount(); i++) {
    const Shard& shard = store.shard(i);
    out.push_back({.id = static_cast<uint32_t>(i),
                   .begin = shard.range().begin,
                   .elements = shard.range().count,
                   .group = config_->groups[shard.range().group].name(),
                   .device = backends_[shard.device()]->describe(),
                   .version = shard.version().value});
  }
  return out;
}

std::vector<TableStatus> ModelHost::tablesStatus() const {
  std::vector<TableStatus> out;
  const ParameterStore& store = *model_->store;
  for (const TableSpec& table : store.model().tables) out.push_back({.name = table.name, .dim = table.dim});
  std::vector<uint64_t> places(out.size());  // of the index, by table
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    const RowShard& shard = store.rowShard(i);
    for (const RowShard::Table& table : shard.tables()) {
      TableStatus& entry = out[table.index];
      const RowTableSize size = table.rows->size();
      entry.group = config_->groups[shard.group()].name();
      entry.rows += size.rows;
      entry.rowBytes += size.bytes;
      entry.indexBytes += size.indexBytes;
      entry.splits += size.splits;
      entry.pulledRows += table.counts->pulled;
      entry.unknownRows += table.counts->unknown;
      entry.pushedRows += table.counts->pushed;
      entry.newRows += table.counts->created;
      entry.refusedRows += table.counts->refused;
      entry.notAdmittedRows += table.counts->notAdmitted;
      entry.evictedRows += table.counts->evicted;
      entry.longestInsertSeconds = std::max(entry.longestInsertSeconds,
                                            static_cast<double>(table.counts->longestInsertNs.load()) * 1e-9);
      places[table.index] += size.places;
    }
  }
  for (size_t i = 0; i < out.size(); i++) {
    if (places[i] > 0) out[i].load = static_cast<double>(out[i].rows) / static_cast<double>(places[i]);
  }
  return out;
}

kj::Promise<Result<HotRowsStatus>> ModelHost::hotRows() {
  if (!model_) return Result<HotRowsStatus>(HotRowsStatus());
  if (findingHotRows_) {
    return Result<HotRowsStatus>(ErrorCode::notReady,
                                 "another search for the hottest rows is in progress; try again");
  }
  findingHotRows_ = true;
  return background_.run<HotRowsStatus>([model = model_] { return hottestRowsOf(*model->store); })
      .then([](HotRowsStatus status) { return Result<HotRowsStatus>(std::move(status)); })
      .attach(kj::defer([this] { findingHotRows_ = false; }));
}

std::vector<RowShardStatus> ModelHost::rowShardsStatus() const {
  std::vector<RowShardStatus> out;
  const ParameterStore& store = *model_->store;
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    const RowShard& shard = store.rowShard(i);
    out.push_back({.id = shard.id().value,
                   .begin = shard.range().begin,
                   .hashUnits = shard.range().count,
                   .group = config_->groups[shard.group()].name(),
                   .device = backends_[shard.device()]->describe(),
                   .rows = shard.size().rows,
                   .version = shard.version().value});
  }
  return out;
}

std::vector<uint32_t> ModelHost::waiters() const {
  std::set<uint32_t> ranks;
  if (!model_) return {};
  for (const WaitingStatus& waiting : waitingStatus())
    ranks.insert(waiting.ranks.begin(), waiting.ranks.end());
  return {ranks.begin(), ranks.end()};
}

std::vector<WaitingStatus> ModelHost::waitingStatus() const {
  std::vector<WaitingStatus> out;
  const Policies policies = model_->policies();
  for (size_t i = 0; i < policies.size(); i++) {
    const std::vector<Waiting> waits = policies[i]->waiting();
    const auto now = std::chrono::steady_clock::now();  // not before a wait begins on another thread
    for (const Waiting& waiting : waits) {
      WaitingStatus& entry = out.emplace_back();
      entry.group = config_->groups[i].name();
      entry.policy = policies[i]->name();
      entry.what = waiting.what;
      entry.joins = waiting.joins;
      for (SessionId waiter : waiting.waiters) {
        if (auto trainer = trainers_.find(waiter); trainer != trainers_.end()) {
          entry.ranks.push_back(trainer->second.rank.value);
        }
      }
      for (const Waiting::For& awaited : waiting.awaited) {
        auto trainer = trainers_.find(awaited.session);
        if (trainer == trainers_.end()) continue;
        const std::chrono::duration<double> waited = now - awaited.since;
        entry.awaited.push_back({trainer->second.rank.value, waited.count()});
      }
    }
  }
  return out;
}

std::vector<RoundsStatus> ModelHost::roundsStatus() const {
  std::vector<RoundsStatus> out;
  const Policies policies = model_->policies();
  std::vector<bool> taken(policies.size());
  for (size_t i = 0; i < model_->store->blockCount(); i++) taken[model_->store->block(i).group()] = true;
  for (size_t i = 0; i < policies.size(); i++) {
    if (config_->groups[i].fragment && !taken[i]) continue;  // the fragment is on other daemons
    const RoundPolicy* const rounds = policies[i]->rounds();
    if (rounds)
      out.push_back(roundsStatusOf(rounds->report(), config_->groups[i].name(), policies[i]->name()));
  }
  return out;
}

}  // namespace psd
