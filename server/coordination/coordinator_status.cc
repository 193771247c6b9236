// Coordinator: its part of the status.

#include <cmath>

#include "server/coordination/coordinator.h"
#include "server/metrics/steady_clock.h"

namespace psd {
namespace {

/// What a trainer waits for; empty: nothing, it computes.
const char* waitsFor(const SessionCounters& counters) {
  if (counters.waitForModel.value() != 0) return "model";
  if (counters.waitForSamples.value() != 0) return "samples";
  if (counters.waitForPush.value() != 0) return "push";
  return counters.waitForParameters.value() != 0 ? "pull" : "";
}

/// A trainer's status without lease, samples and reports.
TrainerStatus statusOf(const Candidate& trainer, const TrainerProcesses::Process& process) {
  const SessionCounters& counters = *process.counters;
  const uint64_t now = steadyMs(), seen = counters.lastSeenMs.value();
  return {.rank = trainer.rank.value,
          .host = trainer.host,
          .pid = trainer.pid,
          .process = process.tag,
          .step = counters.step.value(),
          .staleness = counters.staleness.value(),
          .stalenessHistogram = counters.allStaleness.value(),
          .batch = counters.samples.value(),
          .pulledBytes = counters.bytesPulled.value(),
          .pushedBytes = counters.bytesPushed.value(),
          .pulledValueBytes = counters.valueBytesPulled.value(),
          .pushedValueBytes = counters.valueBytesPushed.value(),
          .codec = trainer.codec,
          .pullCodec = trainer.pullCodec,
          .lastSeenSeconds = static_cast<double>(now > seen ? now - seen : 0) / 1000,
          .waitsFor = waitsFor(counters),
          .connections = counters.connections.value()};
}

BridgeStatus bridgeStatusOf(const Candidate& bridge, const TrainerProcesses::Process& process,
                            bool connected) {
  const SessionCounters& counters = *process.counters;
  const uint64_t now = steadyMs(), seen = counters.lastSeenMs.value();
  return {.host = bridge.host,
          .pid = bridge.pid,
          .process = process.tag,
          .differences = counters.step.value(),
          .lastSeenSeconds = static_cast<double>(now > seen ? now - seen : 0) / 1000,
          .connected = connected};
}

}  // namespace

void Coordinator::fillStatus(DaemonStatus& status) const {
  status.state = end_.requested() ? "stopping" : arrival_.ready() ? "serving" : "waiting for a model";
  status.worldSize = roster_.worldSize();
  status.worldSizeMin = roster_.worldSizeMin();
  status.trainersLost = roster_.lostCount();
  for (const auto& [id, session] : sessions_) {
    if (session.candidate.bridges) {
      status.bridge = bridgeStatusOf(session.candidate, session.process, leases_.connected(id));
      continue;
    }
    TrainerStatus trainer = statusOf(session.candidate, session.process);
    trainer.nominalBatch = samples_.nominalOf(id);
    trainer.connected = leases_.connected(id);
    trainer.leaseLeftSeconds = static_cast<double>(leases_.left(id).count()) / 1000;
    if (const ReportBook::Entry* reported = reports_.find(session.candidate.rank)) {
      trainer.reportedStep = reported->step;
      for (const auto& [name, value] : reported->newest) {
        trainer.reports.push_back({name, std::isfinite(value) ? std::optional(value) : std::nullopt});
      }
    }
    status.trainers.push_back(std::move(trainer));
  }
  status.samples = samples_.status();
}

}  // namespace psd
