#include "trainer/executor/executor_exposition.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "common/http/metric_writer.h"
#include "common/http/process_metrics.h"
#include "common/log/log.h"
#include "common/os/host.h"
#include "common/text/text.h"

namespace psd {
namespace {

using Type = MetricWriter::Type;

constexpr std::array kKinds{CallKind::forward, CallKind::backward};

void writeExecutor(MetricWriter& out, const ExecutorStatus& status) {
  out.begin("psd_executor_build_info", Type::gauge,
            "version, module, weights and devices of its stages; always 1");
  out.sample(1, {{"version", PSD_VERSION},
                 {"module", status.module},
                 {"weights", status.weights},
                 {"devices", joined(status.devices, ",")}});
  const LogLosses lost = logLosses();
  out.one("psd_executor_log_lines_dropped_total", Type::counter,
          "lines of the executor's log dropped because it was not read or written in time", lost.dropped);
  out.one("psd_executor_log_lines_suppressed_total", Type::counter,
          "lines of the executor's log suppressed because peers without access caused too many",
          lost.suppressed);
  out.one("psd_executor_memory_bytes", Type::gauge,
          "memory held by inputs, outputs, stashed parameters and gradients", status.memoryBytes);
  out.one("psd_executor_memory_limit_bytes", Type::gauge, "limit of this memory, `memory_bytes`",
          status.memoryBytesMax);
  out.one("psd_executor_model_parameters", Type::gauge, "parameters of the module, without padding",
          status.parameters);
}

void writeCalls(MetricWriter& out, const ExecutorStatus& status) {
  const TaskThreads::Figures& passes = status.passes;
  const auto each = [&](const char* name, Type type, const char* help, auto value) {
    out.begin(name, type, help);
    for (const CallKind kind : kKinds) out.sample(value(kind), {{"call", nameOf(kind)}});
  };
  const auto histogram = [&](const char* name, const char* help,
                             DurationBuckets TaskThreads::KindFigures::*field) {
    out.begin(name, Type::histogram, help);
    for (const CallKind kind : kKinds) {
      const DurationBuckets& durations = passes.of(kind).*field;
      out.histogram(durations.buckets(), durations.sum(), {"call", nameOf(kind)});
    }
  };
  out.one("psd_executor_workers", Type::gauge, "passes that can be computed at the same time",
          status.workers);
  out.one("psd_executor_computing", Type::gauge, "passes being computed", passes.running);
  each("psd_executor_queue", Type::gauge, "calls that wait for a worker", [&](CallKind kind) {
    return std::ranges::count(passes.waiting, kind, [](const auto& waiting) { return waiting.label.kind; });
  });
  each("psd_executor_queue_oldest_seconds", Type::gauge, "how long the oldest waiting call has waited",
       [&](CallKind kind) {
         double oldest = 0;
         for (const TaskThreads::Waiting& waiting : passes.waiting) {
           if (waiting.label.kind == kind) oldest = std::max(oldest, waiting.seconds);
         }
         return oldest;
       });
  out.one("psd_executor_calls", Type::gauge,
          "calls queued or in progress, including pulls, pushes and waits for `exclusive`", status.calls);
  out.one("psd_executor_calls_limit", Type::gauge, "limit of these calls, `queue`", status.callsMax);
  out.one("psd_executor_overloaded_total", Type::counter, "calls rejected because `queue` was reached",
          status.overloaded);
  histogram("psd_executor_waited_seconds", "how long calls waited for a worker",
            &TaskThreads::KindFigures::waited);
  histogram("psd_executor_pass_seconds", "compute time of passes", &TaskThreads::KindFigures::computed);
}

/// The trainers that the daemon has admitted, by rank. Connections of one rank are summed, since the previous
/// connection of a trainer that has reconnected may still be open.
std::map<uint32_t, RemoteTrainerStatus> byRank(const ExecutorStatus& status) {
  std::map<uint32_t, RemoteTrainerStatus> ranks;
  for (const RemoteTrainerStatus& trainer : status.trainers) {
    if (!trainer.joined) continue;
    RemoteTrainerStatus& sum = ranks[trainer.rank];
    sum.contexts += trainer.contexts;
    sum.forwards += trainer.forwards;
    sum.steps += trainer.steps;
    sum.rows += trainer.rows;
    sum.staleness = std::max(sum.staleness, trainer.staleness);
  }
  return ranks;
}

void writeTrainers(MetricWriter& out, const ExecutorStatus& status) {
  const auto ranks = byRank(status);
  const auto each = [&](const char* name, Type type, const char* help, uint64_t RemoteTrainerStatus::*field) {
    out.begin(name, type, help);
    for (const auto& [rank, trainer] : ranks) out.sample(trainer.*field, {{"rank", fmt::to_string(rank)}});
  };
  out.one("psd_executor_trainers", Type::gauge, "admitted trainers", status.trainers.size());
  out.one("psd_executor_trainers_limit", Type::gauge, "limit of these, `trainers`", status.trainersMax);
  out.one("psd_executor_ending_sessions", Type::gauge,
          "daemon sessions that have not ended yet, of trainers that have departed or lost the daemon",
          status.ending);
  each("psd_executor_trainer_contexts", Type::gauge, "contexts of the trainer",
       &RemoteTrainerStatus::contexts);
  each("psd_executor_trainer_forwards_total", Type::counter, "forward passes of the trainer",
       &RemoteTrainerStatus::forwards);
  each("psd_executor_trainer_steps_total", Type::counter, "steps of the trainer that have been pushed",
       &RemoteTrainerStatus::steps);
  each("psd_executor_trainer_staleness", Type::gauge, "staleness of the trainer's newest step",
       &RemoteTrainerStatus::staleness);
  each("psd_executor_trainer_rows", Type::gauge, "rows of embedding tables that the trainer's contexts hold",
       &RemoteTrainerStatus::rows);
}

}  // namespace

std::string exposition(const ExecutorStatus& status) {
  MetricWriter out;
  writeExecutor(out, status);
  writeCalls(out, status);
  writeTrainers(out, status);
  writeProcessMetrics(out, openDescriptors());
  return out.text();
}

}  // namespace psd
