// What a Control tells of itself: its part of the status document.

#include <spdlog/fmt/fmt.h>

#include "server/control/control.h"
#include "server/metrics/steady_clock.h"

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

nlohmann::ordered_json Control::status() const {
  nlohmann::ordered_json out;
  out["state"] = stopping() ? "stopping" : models_->ready() ? "serving" : "waiting for a model";
  out.update(models_->status());
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
                               {"nominal_batch", samples_->nominalOf(id)},
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
  out["samples"] = samples_->status();
  out["waiting"] = models_->waiting();
  out["staged_bytes"] = models_->stagedBytes();
  out["durability"] = durability_->status();
  for (const auto& [name, value] : counters_.list()) out["counters"][std::string(name)] = value;
  return out;
}

}  // namespace psd
