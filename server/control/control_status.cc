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

TrainerStatus Control::trainerStatus(SessionId id, const Session& session) const {
  const SessionCounters& counters = *session.life.counters;
  const uint64_t now = steadyMs(), seen = counters.lastSeenMs.value();
  return {.rank = session.candidate.rank.value,
          .host = session.candidate.host,
          .pid = session.candidate.pid,
          .incarnation = fmt::format("{:016x}", session.candidate.incarnation),
          .step = counters.step.value(),
          .staleness = counters.staleness.value(),
          .batch = counters.samples.value(),
          .nominalBatch = samples_->nominalOf(id),
          .pulledBytes = counters.bytesPulled.value(),
          .pushedBytes = counters.bytesPushed.value(),
          .pulledValueBytes = counters.valueBytesPulled.value(),
          .pushedValueBytes = counters.valueBytesPushed.value(),
          .codec = session.candidate.codec,
          .pullCodec = session.candidate.pullCodec,
          .lastSeenSeconds = static_cast<double>(now > seen ? now - seen : 0) / 1000,
          .waitsFor = waitsFor(counters),
          .connected = leases_.connected(id),
          .connections = counters.connections.value(),
          .leaseLeftSeconds = static_cast<double>(leases_.left(id).count()) / 1000};
}

void Control::fillStatus(DaemonStatus& status) const {
  status.state = stopping() ? "stopping" : models_->ready() ? "serving" : "waiting for a model";
  models_->fillStatus(status);
  status.worldSize = roster_.worldSize();
  status.worldSizeMin = roster_.worldSizeMin();
  status.trainersLost = roster_.lostCount();
  for (const auto& [id, session] : sessions_) status.trainers.push_back(trainerStatus(id, session));
  status.samples = samples_->status();
  status.durability = durability_->status();
  status.counters = MetricValues<Counter>(counters_);
  status.gauges = MetricValues<Gauge>(counters_);
  status.histograms = MetricValues<Histogram>(counters_);
}

}  // namespace psd
