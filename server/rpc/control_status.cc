// What a Control tells of itself: its part of the status document.

#include <chrono>

#include <spdlog/fmt/fmt.h>

#include "server/metrics/steady_clock.h"
#include "server/rpc/control.h"

namespace psd {
namespace {

/// What a trainer waits for; empty: for nothing, it computes.
const char* waitsFor(const SessionCounters& counters) {
  if (counters.waitForModel.value() != 0) return "model";
  if (counters.waitForSamples.value() != 0) return "samples";
  if (counters.waitForPush.value() != 0) return "push";
  return counters.waitForParameters.value() != 0 ? "pull" : "";
}

}  // namespace

nlohmann::ordered_json Control::waiting() const {
  auto out = nlohmann::ordered_json::array();
  if (!model_) return out;
  const auto now = std::chrono::steady_clock::now();
  const Policies policies = model_->policies();
  for (size_t i = 0; i < policies.size(); i++) {
    for (const Waiting& waiting : policies[i]->waiting()) {
      nlohmann::ordered_json entry = {{"group", config_->groups[i].name()},
                                      {"policy", policies[i]->name()},
                                      {"what", waiting.what},
                                      {"joins", waiting.joins},
                                      {"ranks", nlohmann::ordered_json::array()},
                                      {"for", nlohmann::ordered_json::array()}};
      for (SessionId waiter : waiting.waiters) {
        if (auto session = sessions_.find(waiter); session != sessions_.end()) {
          entry["ranks"].push_back(session->second.candidate.rank.value);
        }
      }
      for (const Waiting::For& awaited : waiting.awaited) {
        auto session = sessions_.find(awaited.session);
        if (session == sessions_.end()) continue;
        const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now - awaited.since);
        entry["for"].push_back({{"rank", session->second.candidate.rank.value}, {"ms", since.count()}});
      }
      out.push_back(std::move(entry));
    }
  }
  return out;
}

nlohmann::ordered_json Control::status() const {
  nlohmann::ordered_json out;
  out["state"] = stopping() ? "stopping" : modelReady() ? "serving" : "waiting for a model";
  out["policy"] = describePolicies(config_->groups);
  out["optimizer"] = describeOptimizers(config_->groups);
  out["model"] = nullptr;
  out["shards"] = nlohmann::ordered_json::array();
  if (model_) {
    const ParameterStore& store = *model_->store;
    out["model"] = {{"name", store.model().name},
                    {"parameters", store.model().parameterCount()},
                    {"tensors", store.model().tensors.size()},
                    {"ready", start_.ready()}};
    for (size_t i = 0; i < store.shardCount(); i++) {
      const Shard& shard = store.shard(i);
      out["shards"].push_back({{"id", i},
                               {"begin", shard.range().begin},
                               {"elements", shard.range().count},
                               {"group", config_->groups[shard.range().group].name()},
                               {"device", backends_[shard.device()]->describe()},
                               {"version", shard.version().value}});
    }
  }
  out["world_size"] = roster_.worldSize();
  out["world_size_min"] = roster_.worldSizeMin();
  out["trainers_lost"] = roster_.lostCount();
  out["trainers"] = nlohmann::ordered_json::array();
  uint64_t now = steadyMs();
  for (const auto& [id, session] : sessions_) {
    uint64_t seen = session.life.counters->lastSeenMs.value();
    out["trainers"].push_back({{"rank", session.candidate.rank.value},
                               {"host", session.candidate.host},
                               {"pid", session.candidate.pid},
                               {"incarnation", fmt::format("{:016x}", session.candidate.incarnation)},
                               {"step", session.life.counters->step.value()},
                               {"staleness", session.life.counters->staleness.value()},
                               {"batch", session.life.counters->samples.value()},
                               {"nominal_batch", batchSizes_.nominalOf(id)},
                               {"bytes_pulled", session.life.counters->bytesPulled.value()},
                               {"bytes_pushed", session.life.counters->bytesPushed.value()},
                               {"codec", session.candidate.codec},
                               {"pull_codec", session.candidate.pullCodec},
                               {"value_bytes_pulled", session.life.counters->valueBytesPulled.value()},
                               {"value_bytes_pushed", session.life.counters->valueBytesPushed.value()},
                               {"last_seen_ms", now > seen ? now - seen : 0},
                               {"waits_for", waitsFor(*session.life.counters)},
                               {"connected", leases_.connected(id)},
                               {"connections", session.life.counters->connections.value()},
                               {"lease_left_ms", leases_.left(id).count()}});
  }
  out["samples"] = nullptr;
  if (const auto plan = durability_->samples()->lockExclusive(); plan->begun()) {
    out["samples"] = {
        {"epoch", plan->terms().samples}, {"epochs", plan->terms().epochs}, {"done", plan->doneCount()}};
  }
  out["waiting"] = waiting();
  out["staged_bytes"] = staging_->lentBytes();
  out["durability"] = durability_->status();
  for (const auto& [name, value] : counters_.list()) out["counters"][std::string(name)] = value;
  return out;
}

}  // namespace psd
