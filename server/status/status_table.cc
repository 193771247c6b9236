#include "server/status/status_table.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/status/daemons_table.h"
#include "server/status/reported_values.h"
#include "server/status/table_text.h"

namespace psd {
namespace {

constexpr uint64_t kHeldBytesMin = 64 << 10;  // every status request takes some
constexpr size_t kLineBytesMax = 8 << 10;     // bounds untrusted text

using Row = TextRow;

/// "topk:fraction=0.01 66.1x": codec of a trainer's gradients and its compression relative to float32.
std::string compressionText(const TrainerStatus& trainer) {
  if (trainer.codec == "none" || trainer.pushedBytes == 0) return trainer.codec;
  return fmt::format(
      "{} {:.1f}x", trainer.codec,
      static_cast<double>(trainer.pushedValueBytes) / static_cast<double>(trainer.pushedBytes));
}

std::string waitsForText(const TrainerStatus& trainer) {
  if (!trainer.connected) return "its connection";
  return trainer.waitsFor.empty() ? "-" : trainer.waitsFor;
}

std::string trainersTable(const std::vector<TrainerStatus>& trainers) {
  const auto any = [&](auto condition) { return std::any_of(trainers.begin(), trainers.end(), condition); };
  const bool codecs = any([](const TrainerStatus& trainer) { return trainer.codec != "none"; });
  const bool several = any([](const TrainerStatus& trainer) { return trainer.connections > 1; });
  const bool sizes = any([](const TrainerStatus& trainer) { return trainer.nominalBatch != 0; });
  const bool losses = any([](auto& trainer) { return reportedOf(trainer, kReportedLoss); });
  const bool tokens = any([](auto& trainer) { return reportedOf(trainer, kReportedTokens); });
  std::vector<Row> rows = {
      {"rank", "process", "step", "staleness", "pulled", "pushed", "last seen", "lease left", "waits for"}};
  if (codecs) rows.front().push_back("codec");
  if (several) rows.front().push_back("connections");
  if (sizes) rows.front().push_back("batch");
  if (losses) rows.front().push_back("loss");
  if (tokens) rows.front().push_back("tokens/s");
  for (const TrainerStatus& trainer : trainers) {
    rows.push_back({fmt::to_string(trainer.rank), fmt::format("{}@{}", trainer.pid, trainer.host),
                    fmt::to_string(trainer.step), fmt::to_string(trainer.staleness),
                    bytesText(trainer.pulledBytes), bytesText(trainer.pushedBytes),
                    durationText(trainer.lastSeenSeconds) + " ago", durationText(trainer.leaseLeftSeconds),
                    waitsForText(trainer)});
    if (codecs) rows.back().push_back(compressionText(trainer));
    if (several) rows.back().push_back(fmt::to_string(trainer.connections));
    if (sizes) rows.back().push_back(fmt::to_string(trainer.batch));
    if (losses) rows.back().push_back(reportedText(trainer, kReportedLoss));
    if (tokens) rows.back().push_back(reportedRateText(trainer, kReportedTokens));
  }
  return alignedRows(rows);
}

std::string shardsTable(const std::vector<ShardStatus>& shards) {
  const bool several = std::ranges::any_of(
      shards, [&](const ShardStatus& shard) { return shard.group != shards.front().group; });
  std::vector<Row> rows = {{"shard", "elements", "version", "device"}};
  if (several) rows.back().push_back("group");
  for (const ShardStatus& shard : shards) {
    rows.push_back({fmt::to_string(shard.id), fmt::to_string(shard.elements), fmt::to_string(shard.version),
                    shard.device});
    if (several) rows.back().push_back(shard.group);
  }
  return alignedRows(rows);
}

std::string rowShardsTable(const std::vector<RowShardStatus>& shards) {
  std::vector<Row> rows = {{"row shard", "rows", "version", "device"}};
  for (const RowShardStatus& shard : shards) {
    rows.push_back(
        {fmt::to_string(shard.id), fmt::to_string(shard.rows), fmt::to_string(shard.version), shard.device});
  }
  return alignedRows(rows);
}

std::string tablesTable(const std::vector<TableStatus>& tables) {
  std::vector<Row> rows = {
      {"table", "dim", "rows", "memory", "pulled", "pushed", "refused", "not admitted", "evicted"}};
  for (const TableStatus& table : tables) {
    rows.push_back({table.name, fmt::to_string(table.dim), fmt::to_string(table.rows),
                    bytesText(table.rowBytes + table.indexBytes), fmt::to_string(table.pulledRows),
                    fmt::to_string(table.pushedRows), fmt::to_string(table.refusedRows),
                    fmt::to_string(table.notAdmittedRows), fmt::to_string(table.evictedRows)});
  }
  return alignedRows(rows);
}

std::string modelLines(const DaemonStatus& status) {
  if (!status.model) return labelledLine("model", "none yet; the first trainer defines it");
  const ModelStatus& model = *status.model;
  const std::string buffers =
      model.buffers == 0
          ? ""
          : fmt::format(", {} of {}", countText(model.buffers, "buffer"), bytesText(model.bufferBytes));
  return labelledLine("model",
                      fmt::format("{}, {} in {}{}{}", model.name, countText(model.parameters, "parameter"),
                                  countText(model.tensors, "tensor"), buffers,
                                  model.ready ? "" : ", not initialized yet")) +
         (status.shards.empty() ? "" : shardsTable(status.shards)) +
         (status.tables.empty() ? "" : tablesTable(status.tables) + rowShardsTable(status.rowShards));
}

std::string trainersLines(const DaemonStatus& status) {
  const uint32_t least = status.worldSizeMin, most = status.worldSize;
  const std::optional<double> tokens = reportedSum(status.trainers, kReportedTokens);
  const std::string counted = labelledLine(
      "trainers",
      fmt::format("{}, {} lost{}",
                  least == most ? fmt::format("{} of {} joined", status.trainers.size(), most)
                                : fmt::format("{} joined of {} to {}", status.trainers.size(), least, most),
                  status.trainersLost, tokens ? fmt::format("; {} tokens/s", rateText(*tokens)) : ""));
  return status.trainers.empty() ? counted : counted + trainersTable(status.trainers);
}

/// "bridge     process 4711 on node7, differences added: 12, last seen 0.1 s ago"
std::string bridgeLine(const BridgeStatus& bridge) {
  return labelledLine(
      "bridge",
      fmt::format("process {} on {}, differences added: {}, {}", bridge.pid, bridge.host, bridge.differences,
                  bridge.connected ? fmt::format("last seen {:.1f} s ago", bridge.lastSeenSeconds)
                                   : std::string("not connected")));
}

/// "sync", or "sync of fc*" if there are several groups.
std::string policyText(const std::string& policy, const std::string& group, bool several) {
  return several ? fmt::format("{} of {}", policy, group) : policy;
}

/// "waiting    ranks 0, 2 wait in round 17 (sync) for rank 1 (3.2 s)"
std::string waitingLine(const WaitingStatus& waiting, bool several) {
  std::string reason = joined(waiting.awaited, "; ", [](const AwaitedStatus& one) {
    return fmt::format("rank {} ({})", one.rank, durationText(one.waitedSeconds));
  });
  if (waiting.joins > 0)
    reason += (reason.empty() ? "" : "; ") + countText(waiting.joins, "more trainer") + " to join";
  const std::string ranks = ranksText(waiting.ranks);
  return labelledLine(
      "waiting",
      fmt::format("{} in {} ({}) for {}",
                  waiting.ranks.size() == 1 ? "rank " + ranks + " waits" : "ranks " + ranks + " wait",
                  waiting.what, policyText(waiting.policy, waiting.group, several), reason));
}

/// "rounds     117 closed (diloco); last: ranks 0, 1 in 1.2 s, left out: rank 2 of 12 round(s), the last 2 in
/// a row". Empty before the first round has closed, and for single-step rounds in which no trainer can be
/// left out.
std::string roundsLine(const RoundsStatus& rounds, bool several) {
  const std::string policy = policyText(rounds.policy, rounds.group, several);
  if (rounds.generation) {
    const std::string ranks = ranksText(rounds.in);
    return labelledLine("averaging", fmt::format("{} step(s) ({}); generation {}: ranks {}", rounds.closed,
                                                 policy, *rounds.generation, ranks.empty() ? "none" : ranks));
  }
  const bool waitsForAll = rounds.policy == "sync" && !rounds.graceSeconds;
  if (rounds.closed == 0 || (waitsForAll && rounds.leftOut.empty() && rounds.late.empty())) return "";
  std::string text = fmt::format("{} closed ({}); last: ranks {} in {}", rounds.closed, policy,
                                 ranksText(rounds.in), durationText(rounds.openSeconds));
  if (!rounds.late.empty()) text += fmt::format(", late: ranks {}", ranksText(rounds.late));
  if (rounds.graceSeconds) text += fmt::format(", grace {}", durationText(*rounds.graceSeconds));
  if (!rounds.leftOut.empty()) {
    text += "; left out: " + joined(rounds.leftOut, ", ", [](const LeftOutStatus& one) {
              const std::string row =
                  one.running > 1 ? fmt::format(", the last {} in a row", one.running) : "";
              return fmt::format("rank {} of {} round(s){}", one.rank, one.rounds, row);
            });
  }
  if (rounds.graceLeftSeconds) {
    text += fmt::format("; open round: ranks {}, grace left {}", ranksText(rounds.contributed),
                        durationText(*rounds.graceLeftSeconds));
  }
  return labelledLine("rounds", text);
}

std::string checkpointText(const std::optional<CheckpointStatus>& last) {
  if (!last) return "no checkpoint yet";
  return fmt::format("last checkpoint {} ago ({}, {}, pushes paused for {})", durationText(last->ageSeconds),
                     bytesText(last->writtenBytes), durationText(last->durationSeconds),
                     durationText(last->pauseSeconds));
}

std::string durabilityLines(const DurabilityStatus& durability) {
  if (durability.type == "none") return "";
  std::string text = fmt::format("{} in {}, {}", durability.type, durability.path,
                                 checkpointText(durability.lastCheckpoint));
  if (durability.checkpointFailures > 0) text += fmt::format(", {} failed", durability.checkpointFailures);
  std::string out = labelledLine("durability", text);
  if (durability.log && durability.log->diskBytes > 0) {
    out += labelledLine(
        "", fmt::format("{} of log and {} of checkpoints on disk", bytesText(durability.log->diskBytes),
                        bytesText(durability.checkpointDiskBytes)));
  }
  if (!durability.error.empty()) out += labelledLine("", "NOT SAVED: " + durability.error);
  if (durability.log && !durability.log->error.empty()) {
    out += labelledLine("", fmt::format("LOG BROKEN: {}, {} updates not written", durability.log->error,
                                        durability.log->lost));
  }
  return out;
}

std::string upstreamLine(const UpstreamStatus& upstream, uint64_t newest) {
  std::string text = upstream.address.empty() ? "no daemon is reached" : upstream.address;
  if (upstream.newest > newest) text += ", behind version " + std::to_string(upstream.newest);
  if (upstream.ageSeconds) text += ", complete " + durationText(*upstream.ageSeconds) + " ago";
  return labelledLine("upstream", text);
}

std::string publishLines(const PublishStatus& publish) {
  std::string text = "none yet";
  if (publish.newest > 0) {
    text = fmt::format("newest {}, {} of {} in {}", publish.newest,
                       countText(publish.versions.size(), "version"), bytesText(publish.bytes),
                       publish.path.empty() ? "memory" : publish.path);
  }
  if (!publish.leases.empty()) text += ", " + countText(publish.leases.size(), "lease");
  if (publish.failures > 0) text += fmt::format(", {} failed", publish.failures);
  if (publish.abandoned > 0) text += ", " + countText(publish.abandoned, "step") + " abandoned";
  std::string out = labelledLine("published", text);
  if (!publish.error.empty())
    out += labelledLine("", (publish.upstream ? "NOT COPIED: " : "NOT PUBLISHED: ") + publish.error);
  if (publish.upstream) out += upstreamLine(*publish.upstream, publish.newest);
  if (!publish.assembling) return out;
  const AssemblingStatus& step = *publish.assembling;
  std::string state = "is written";
  if (!step.missing.empty()) {
    state = fmt::format("waits for {} of {} ({})", countText(step.missing.size(), "rank"), step.worldSize,
                        ranksText(step.missing));
  }
  if (step.bytes > 0)
    state += fmt::format(", {} of {} arrived", bytesText(step.arrivedBytes), bytesText(step.bytes));
  return out + labelledLine("", fmt::format("step {} {}", step.step, state));
}

std::string partitionLine(const PartitionStatus& partition) {
  return labelledLine("partition", fmt::format("{} of {}, served by {}", partition.index, partition.of,
                                               joined(partition.daemons, " ")));
}

/// Memory held for peers, of its limits.
std::string heldLine(const HeldBytes& held, const HeldLimits& limits) {
  struct Part {
    const char* limit;
    uint64_t bytes, most;
  };
  const Part parts[] = {{"in_flight_bytes", held.inFlight, limits.inFlight},
                        {"staged_bytes", held.staged, limits.staged},
                        {"snapshot_bytes", held.snapshots, limits.snapshots},
                        {"log_pending_bytes", held.logPending, limits.logPending},
                        {"all_outgoing_bytes", held.outgoing, limits.outgoing},
                        {"all_rings_bytes", held.rings, limits.rings},
                        {"arriving_bytes", held.arriving, limits.arriving}};
  std::vector<std::string> texts;
  for (const auto& [limit, bytes, most] : parts) {
    if (bytes < kHeldBytesMin) continue;
    texts.push_back(fmt::format("{} {} of {}", limit, bytesText(bytes), bytesText(most)));
  }
  return texts.empty() ? "" : labelledLine("held", joined(texts, ", "));
}

/// "staleness  median 3, 99 % ≤ 16, max 17"
std::string histogramLine(const MetricInfo& info, const HistogramValue& value) {
  const auto text = [&](double number) {
    if (info.unit == Unit::seconds) return durationText(number);
    const double known = std::isfinite(number) ? std::clamp(std::ceil(number), 0.0, 1e18) : 0;
    if (info.unit == Unit::bytes) return bytesText(static_cast<uint64_t>(known));
    return fmt::to_string(static_cast<uint64_t>(known));
  };
  std::string label(info.name);
  if (const auto unit = label.rfind("_seconds"); unit != std::string::npos) label.resize(unit);
  std::replace(label.begin(), label.end(), '_', ' ');
  return labelledLine(label, fmt::format("median {}, 99 % ≤ {}, max {}", text(value.quantile(0.5)),
                                         text(value.bound(0.99)), text(value.most)));
}

std::string metricsLines(const DaemonStatus& status) {
  const DaemonMetrics& metrics = daemonMetrics();
  const auto& counters = status.counters;
  std::string out = labelledLine(
      "traffic", fmt::format("{} pulled, {} pushed, {} gradients ({}/s) in {} updates, {} connections open",
                             bytesText(counters[metrics.pullBytes]), bytesText(counters[metrics.pushBytes]),
                             counters[metrics.gradients], rateText(status.gradientsPerSecond),
                             counters[metrics.updates], status.gauges[metrics.connectionsOpen]));
  const uint64_t late = counters[metrics.latePushes], stale = counters[metrics.stalePushes];
  if (late + stale > 0)
    out += labelledLine("gradients", fmt::format("{} dropped as late, {} as stale", late, stale));
  for (const Metric<Histogram>* metric : metrics.all<Histogram>()) {
    const HistogramValue& value = status.histograms[*metric];
    if (value.count > 0) out += histogramLine(metric->info(), value);
  }
  std::vector<std::string> troubles;
  for (const Metric<Counter>* metric : metrics.all<Counter>()) {
    const uint64_t count = counters[*metric];
    if (metric->info().isProblem && count > 0)
      troubles.push_back(fmt::format("{} {}", metric->info().name, count));
  }
  return troubles.empty() ? out : out + labelledLine("refused", joined(troubles, " "));
}

}  // namespace

std::string statusTable(const DaemonStatus& status) {
  const std::string heading =
      fmt::format("psd {}  {}  pid {} on {}, up {}, {} resident", status.version, status.state, status.pid,
                  status.host, durationText(status.uptimeSeconds), bytesText(status.residentBytes));
  std::string out = oneLine(heading, kLineBytesMax) + "\n";
  out += labelledLine("listening", joined(status.addresses, ", "));
  if (!status.movedTo.empty()) out += labelledLine("moved to", joined(status.movedTo, " "));
  const bool isStore = status.publish && status.publish->from != "training";  // which has no model
  if (!isStore) {
    out += labelledLine("policy", status.policy);
    out += labelledLine("optimizer", status.optimizer);
    out += modelLines(status);
    if (status.partition) out += partitionLine(*status.partition);
    out += trainersLines(status);
  }
  if (status.bridge) out += bridgeLine(*status.bridge);
  const bool several = status.hasSeveralGroups();
  for (const WaitingStatus& waiting : status.waiting) out += waitingLine(waiting, several);
  for (const RoundsStatus& rounds : status.rounds) out += roundsLine(rounds, several);
  if (!isStore) out += durabilityLines(status.durability);
  if (status.publish) out += publishLines(*status.publish);
  if (status.replicaSet) out += replicaLines(*status.replicaSet);
  out += heldLine(status.held, status.limits);
  if (status.logLinesDropped + status.logLinesSuppressed > 0) {
    out += labelledLine("log lines", fmt::format("{} DROPPED, {} suppressed", status.logLinesDropped,
                                                 status.logLinesSuppressed));
  }
  return out + metricsLines(status);
}

std::string versionsTable(const PublishStatus& publish) {
  if (publish.versions.empty()) return "no version is published yet\n";
  std::vector<Row> rows = {{"version", "step", "created", "moment", "size", "leases"}};
  for (const VersionStatus& version : publish.versions) {
    const auto leases = std::ranges::count(publish.leases, version.number, &VersionLeaseStatus::version);
    rows.push_back({fmt::to_string(version.number), fmt::to_string(version.step), version.created,
                    version.moment, bytesText(version.bytes), fmt::to_string(leases)});
  }
  std::string out = alignedRows(rows);
  for (const VersionLeaseStatus& lease : publish.leases) {
    out += fmt::format("{} leases version {}, {} behind the newest; expires in {}\n", lease.reader,
                       lease.version, countText(lease.behind, "version"), durationText(lease.secondsLeft));
  }
  return out;
}

std::string hotRowsTable(const HotRowsStatus& status) {
  std::vector<Row> rows = {{"table", "row", "updates", "last at version"}};
  for (const HotRowsStatus::Table& table : status.tables) {
    for (const HotRowsStatus::Row& row : table.rows) {
      rows.push_back({table.name, row.id, fmt::to_string(row.updates), fmt::to_string(row.version)});
    }
  }
  return rows.size() == 1 ? "no table has a row\n" : alignedRows(rows);
}

}  // namespace psd
