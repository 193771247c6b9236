#include "server/http/exposition.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/http/metric_writer.h"
#include "common/http/process_metrics.h"

namespace psd {
namespace {

using Type = MetricWriter::Type;

void write(MetricWriter& out, const MetricInfo& info, const HistogramValue& value) {
  out.begin(fmt::format("psd_{}", info.name), Type::histogram, info.help);
  out.histogram(value.buckets, value.sum);
}

void writeMetrics(MetricWriter& out, const DaemonStatus& status, const HttpMetrics& http) {
  for (const auto* metric : daemonMetrics().all<Counter>()) {
    out.one(fmt::format("psd_{}_total", metric->info().name), Type::counter, metric->info().help,
            status.counters[*metric]);
  }
  for (const auto* metric : daemonMetrics().all<Gauge>()) {
    out.one(fmt::format("psd_{}", metric->info().name), Type::gauge, metric->info().help,
            status.gauges[*metric]);
  }
  for (const auto* metric : daemonMetrics().all<Histogram>()) {
    write(out, metric->info(), status.histograms[*metric]);
  }
  for (const auto* metric : http.all<Counter>()) {
    out.one(fmt::format("psd_{}_total", metric->info().name), Type::counter, metric->info().help,
            metric->value());
  }
  for (const auto* metric : http.all<Gauge>()) {
    out.one(fmt::format("psd_{}", metric->info().name), Type::gauge, metric->info().help, metric->value());
  }
}

void writeDaemon(MetricWriter& out, const DaemonStatus& status) {
  out.begin("psd_build_info", Type::gauge, "version, policy and optimizer; always 1");
  out.sample(1, {{"version", status.version}, {"policy", status.policy}, {"optimizer", status.optimizer}});
  out.one("psd_uptime_seconds", Type::gauge, "since the daemon's start", status.uptimeSeconds);
  out.one("psd_serving", Type::gauge,
          "whether trainers are served: the model has values and no shutdown is in progress",
          status.state == "serving" ? 1 : 0);
  out.begin("psd_tls_certificate_expiry_timestamp_seconds", Type::gauge,
            "when the certificate of `tls` expires, in Unix time");
  if (status.certificateExpirySeconds) out.sample(*status.certificateExpirySeconds);
  out.one("psd_log_lines_dropped_total", Type::counter,
          "lines of the daemon's log dropped because its target was too slow", status.logLinesDropped);
  out.one("psd_log_lines_suppressed_total", Type::counter,
          "lines of the daemon's log suppressed because peers without access caused too many",
          status.logLinesSuppressed);
  const std::pair<const char*, std::pair<uint64_t, uint64_t>> held[] = {
      {"in_flight", {status.held.inFlight, status.limits.inFlight}},
      {"rings", {status.held.rings, status.limits.rings}},
      {"snapshots", {status.held.snapshots, status.limits.snapshots}},
      {"log_pending", {status.held.logPending, status.limits.logPending}},
      {"outgoing", {status.held.outgoing, status.limits.outgoing}},
      {"staged", {status.held.staged, status.limits.staged}},
      {"arriving", {status.held.arriving, status.limits.arriving}}};
  out.begin("psd_held_bytes", Type::gauge, "memory held for peers");
  for (const auto& [kind, bytes] : held) out.sample(bytes.first, {{"kind", kind}});
  out.begin("psd_held_limit_bytes", Type::gauge, "limit of psd_held_bytes");
  for (const auto& [kind, bytes] : held) out.sample(bytes.second, {{"kind", kind}});
  out.one("psd_model_parameters", Type::gauge, "parameters of the served model, without padding",
          status.model ? status.model->parameters : 0);
  out.begin("psd_partition", Type::gauge,
            "index and number of partitions if several daemons serve the model; always 1");
  if (status.partition) {
    out.sample(1, {{"index", fmt::to_string(status.partition->index)},
                   {"of", fmt::to_string(status.partition->of)}});
  }
  out.begin("psd_daemon_info", Type::gauge,
            "partition of the daemon and, with an engine, its role and process number; always 1");
  out.sample(1, {{"partition", fmt::to_string(status.partition ? status.partition->index : 0)},
                 {"role", status.replicaSet ? status.replicaSet->role : "primary"},
                 {"daemon", status.replicaSet ? status.replicaSet->daemon : ""}});
  out.one("psd_samples_done_total", Type::counter, "finished samples, of those that the daemon assigns",
          status.samples ? status.samples->done : 0);
}

void writeDurability(MetricWriter& out, const DurabilityStatus& durability) {
  const LogStatus log = durability.log.value_or(LogStatus());
  out.one("psd_checkpoints_total", Type::counter, "checkpoints written", durability.checkpoints);
  out.one("psd_checkpoint_failures_total", Type::counter, "failed checkpoints",
          durability.checkpointFailures);
  out.one("psd_checkpoint_interval_seconds", Type::gauge,
          "`durability.every_seconds`; 0: checkpoints are not taken by time",
          durability.checkpointIntervalSeconds);
  out.begin("psd_last_checkpoint_age_seconds", Type::gauge, "since the newest checkpoint was completed");
  if (durability.lastCheckpoint) out.sample(durability.lastCheckpoint->ageSeconds);
  out.begin("psd_last_checkpoint_duration_seconds", Type::gauge, "duration of the newest checkpoint");
  if (durability.lastCheckpoint) out.sample(durability.lastCheckpoint->durationSeconds);
  out.one("psd_checkpoint_disk_bytes", Type::gauge, "disk space of the retained checkpoints",
          durability.checkpointDiskBytes);
  out.one("psd_log_disk_bytes", Type::gauge, "disk space of the retained log segments", log.diskBytes);
  out.one("psd_durability_failing", Type::gauge, "whether the last attempt to save failed",
          durability.error.empty() && log.error.empty() ? 0 : 1);
  out.one("psd_log_records_total", Type::counter, "records written to the log", log.records);
  out.one("psd_log_written_bytes_total", Type::counter, "bytes written to the log", log.writtenBytes);
  out.one("psd_log_lost_total", Type::counter, "updates not written to the log", log.lost);
}

/// Without `publish` the metrics have no sample.
void writePublish(MetricWriter& out, const std::optional<PublishStatus>& publish) {
  const auto write = [&](const char* name, Type type, const char* help, auto valueOf) {
    out.begin(name, type, help);
    if (publish) out.sample(valueOf(*publish));
  };
  write("psd_published_version", Type::gauge, "number of the newest published version; 0: none",
        [](const PublishStatus& status) { return status.newest; });
  write("psd_versions", Type::gauge, "published versions that exist",
        [](const PublishStatus& status) { return status.versions.size(); });
  write("psd_versions_bytes", Type::gauge, "bytes of the published versions",
        [](const PublishStatus& status) { return status.bytes; });
  write("psd_version_leases", Type::gauge, "leases of published versions",
        [](const PublishStatus& status) { return status.leases.size(); });
  write("psd_version_lease_behind", Type::gauge,
        "versions that are newer than the oldest leased one; 0: none is leased",
        [](const PublishStatus& status) {
          uint64_t behind = 0;
          for (const VersionLeaseStatus& lease : status.leases) behind = std::max(behind, lease.behind);
          return behind;
        });
  write("psd_versions_published_total", Type::counter, "versions published by this process",
        [](const PublishStatus& status) { return status.published; });
  write("psd_publish_failures_total", Type::counter, "versions that could not be published",
        [](const PublishStatus& status) { return status.failures; });
  write("psd_publish_abandoned_total", Type::counter,
        "steps of publishers whose parts did not become a version",
        [](const PublishStatus& status) { return status.abandoned; });
  write("psd_publish_received_bytes_total", Type::counter, "bytes of parts received from publishers",
        [](const PublishStatus& status) { return status.receivedBytes; });
  out.begin("psd_upstream_version", Type::gauge,
            "number of the newest version of the source that this replica copies");
  if (publish && publish->upstream) out.sample(publish->upstream->newest);
  out.begin("psd_upstream_age_seconds", Type::gauge,
            "time since this replica had all versions of its source");
  if (publish && publish->upstream && publish->upstream->ageSeconds)
    out.sample(*publish->upstream->ageSeconds);
  write("psd_publish_failing", Type::gauge, "whether the last attempt to publish failed",
        [](const PublishStatus& status) { return status.error.empty() ? 0 : 1; });
  write("psd_publish_duration_seconds", Type::gauge, "duration of the newest publication",
        [](const PublishStatus& status) { return status.lastSeconds; });
  write("psd_publish_pause_max_seconds", Type::gauge,
        "longest time that an update waited for the copy of a version",
        [](const PublishStatus& status) { return status.pauseMaxSeconds; });
}

void writeDisks(MetricWriter& out, const std::vector<DiskStatus>& disks) {
  out.begin("psd_disk_free_bytes", Type::gauge,
            "free space of the file system of a folder to which the daemon writes");
  for (const DiskStatus& disk : disks) out.sample(disk.freeBytes, {{"path", disk.path}});
  out.begin("psd_disk_size_bytes", Type::gauge, "size of that file system");
  for (const DiskStatus& disk : disks) out.sample(disk.sizeBytes, {{"path", disk.path}});
}

void writeTrainers(MetricWriter& out, const DaemonStatus& status) {
  const auto each = [&](const char* name, Type type, const char* help, auto value) {
    out.begin(name, type, help);
    for (const TrainerStatus& trainer : status.trainers) {
      out.sample(value(trainer), {{"rank", fmt::to_string(trainer.rank)}});
    }
  };
  out.one("psd_trainers", Type::gauge, "joined trainers", status.trainers.size());
  out.one("psd_world_size", Type::gauge, "maximum number of trainers; 0: not known yet", status.worldSize);
  out.one("psd_trainers_lost_total", Type::counter, "trainer sessions that ended without leaving",
          status.trainersLost);
  each("psd_trainer_step", Type::gauge, "step of the trainer's last push", [](auto& t) { return t.step; });
  each("psd_trainer_staleness", Type::gauge, "staleness of the trainer's last update",
       [](auto& t) { return t.staleness; });
  each("psd_trainer_pulled_bytes_total", Type::counter, "parameters pulled by the trainer",
       [](auto& t) { return t.pulledBytes; });
  each("psd_trainer_pushed_bytes_total", Type::counter, "gradients pushed by the trainer",
       [](auto& t) { return t.pushedBytes; });
  each("psd_trainer_last_seen_seconds", Type::gauge, "since the trainer's last call",
       [](auto& t) { return t.lastSeenSeconds; });
  each("psd_trainer_connected", Type::gauge, "whether the trainer is connected",
       [](auto& t) { return t.connected ? 1 : 0; });
  each("psd_trainer_reported_step", Type::gauge, "step of the trainer's newest report; 0: none",
       [](auto& t) { return t.reportedStep; });
  out.begin("psd_trainer_reported", Type::gauge, "values reported by the trainer, such as its loss");
  for (const TrainerStatus& trainer : status.trainers) {
    for (const ReportedStatus& each : trainer.reports) {
      if (!each.value) continue;
      out.sample(*each.value, {{"rank", fmt::to_string(trainer.rank)}, {"name", each.name}});
    }
  }
  out.begin("psd_waited_for_seconds", Type::gauge, "how long others have waited for the trainer");
  std::map<std::pair<std::string, uint32_t>, double> waited;
  for (const WaitingStatus& waiting : status.waiting) {
    for (const AwaitedStatus& awaited : waiting.awaited) {
      double& longest = waited[{waiting.group, awaited.rank}];
      longest = std::max(longest, awaited.waitedSeconds);
    }
  }
  for (const auto& [who, seconds] : waited) {
    out.sample(seconds, {{"group", who.first}, {"rank", fmt::to_string(who.second)}});
  }
}

/// The rounds of each parameter group; a fragment is one.
void writeRounds(MetricWriter& out, const std::vector<RoundsStatus>& all) {
  const auto each = [&](const char* name, Type type, const char* help, auto samples) {
    out.begin(name, type, help);
    for (const RoundsStatus& rounds : all) {
      samples(rounds, [&](double value) { out.sample(value, {{"group", rounds.group}}); });
    }
  };
  const auto ranks = [&](const char* name, Type type, const char* help, auto samples) {
    out.begin(name, type, help);
    for (const RoundsStatus& rounds : all) {
      samples(rounds, [&](uint32_t rank, double value) {
        out.sample(value, {{"group", rounds.group}, {"rank", fmt::to_string(rank)}});
      });
    }
  };
  each("psd_rounds_closed_total", Type::counter, "closed rounds of the group",
       [](auto& rounds, auto sample) { sample(static_cast<double>(rounds.closed)); });
  each("psd_round_open_seconds", Type::gauge, "how long the group's last round was open",
       [](auto& rounds, auto sample) { sample(rounds.openSeconds); });
  each("psd_round_grace_seconds", Type::gauge,
       "time of the group's last round from quorum to close; only with a grace",
       [](auto& rounds, auto sample) {
         if (rounds.graceSeconds) sample(*rounds.graceSeconds);
       });
  each("psd_round_grace_left_seconds", Type::gauge, "remaining grace of the open round",
       [](auto& rounds, auto sample) {
         if (rounds.graceLeftSeconds) sample(*rounds.graceLeftSeconds);
       });
  each("psd_round_contributors", Type::gauge, "trainers that have contributed to the open round",
       [](auto& rounds, auto sample) { sample(static_cast<double>(rounds.contributed.size())); });
  ranks("psd_round_contributed", Type::gauge, "whether the trainer contributed to the group's last round",
        [](auto& rounds, auto sample) {
          for (const uint32_t rank : rounds.in) sample(rank, 1);
          for (const uint32_t rank : rounds.missing) sample(rank, 0);
        });
  ranks("psd_round_late", Type::gauge,
        "whether the trainer's part in the group's last round was computed for an earlier one",
        [](auto& rounds, auto sample) {
          for (const uint32_t rank : rounds.in) sample(rank, std::ranges::count(rounds.late, rank) ? 1 : 0);
        });
  ranks("psd_rounds_left_out_total", Type::counter,
        "rounds of the group that closed without the joined trainer", [](auto& rounds, auto sample) {
          for (auto& one : rounds.leftOut) sample(one.rank, static_cast<double>(one.rounds));
        });
  ranks("psd_rounds_left_out_running", Type::gauge,
        "consecutive last rounds of the group that closed without the trainer",
        [](auto& rounds, auto sample) {
          for (auto& one : rounds.leftOut) sample(one.rank, static_cast<double>(one.running));
        });
}

void writeBlocks(MetricWriter& out, const DaemonStatus& status) {
  out.begin(
      "psd_learning_rate", Type::gauge,
      "largest learning rate of the group: of the newest pushes that carried one, else of the next update");
  for (const LearningRateStatus& each : status.learningRates) out.sample(each.rate, {{"group", each.group}});
  out.begin("psd_shard_updates_total", Type::counter, "updates applied to the shard or row shard");
  for (const ShardStatus& shard : status.shards) {
    out.sample(shard.version, {{"shard", fmt::to_string(shard.id)}, {"group", shard.group}});
  }
  for (const RowShardStatus& shard : status.rowShards) {
    out.sample(shard.version, {{"shard", fmt::to_string(shard.id)}, {"group", shard.group}});
  }
  const auto each = [&](const char* name, Type type, const char* help, uint64_t TableStatus::*field) {
    out.begin(name, type, help);
    for (const TableStatus& table : status.tables) out.sample(table.*field, {{"table", table.name}});
  };
  each("psd_table_rows", Type::gauge, "rows of the embedding table", &TableStatus::rows);
  each("psd_table_row_bytes", Type::gauge, "memory of the table's rows with optimizer state",
       &TableStatus::rowBytes);
  each("psd_table_index_bytes", Type::gauge, "memory of the table's index", &TableStatus::indexBytes);
  each("psd_table_pulled_rows_total", Type::counter, "rows pulled", &TableStatus::pulledRows);
  each("psd_table_pushed_rows_total", Type::counter, "rows whose gradients were applied",
       &TableStatus::pushedRows);
  each("psd_table_new_rows_total", Type::counter, "rows created by pushes", &TableStatus::newRows);
  each("psd_table_refused_rows_total", Type::counter, "rows not created because a limit was reached",
       &TableStatus::refusedRows);
  each("psd_table_evicted_rows_total", Type::counter, "rows evicted", &TableStatus::evictedRows);
}

void writeGroup(MetricWriter& out, const std::optional<ReplicaSetStatus>& group) {
  const auto each = [&](const char* name, const char* help, auto value) {
    out.begin(name, Type::gauge, help);
    if (group) out.sample(value(*group));
  };
  each("psd_replica_waits_for_disk",
       "whether pushes are answered only once they are in the on-disk logs of both daemons",
       [](auto& g) { return g.wait == "standby_and_disk" ? 1 : 0; });
  each("psd_replica_primary", "whether the daemon is the primary of its replica set; only with an engine",
       [](auto& g) { return g.role == "primary" ? 1 : 0; });
  each("psd_replica_standby", "whether the daemon is an in-sync standby, able to take over",
       [](auto& g) { return g.role == "standby" ? 1 : 0; });
  each("psd_replica_waits", "whether the daemon waits for something before it serves or follows",
       [](auto& g) { return g.waits.empty() ? 0 : 1; });
  each("psd_replica_term", "term of the replica set, incremented by each takeover",
       [](auto& g) { return g.term; });
  each("psd_replica_waits_for_standby", "whether pushes are answered only once a standby holds them",
       [](auto& g) { return g.waitsForStandby ? 1 : 0; });
  each("psd_replica_standby_in_sync", "for a primary: whether its standby is in sync",
       [](auto& g) { return g.inSync() ? 1 : 0; });
  each("psd_replica_lag_bytes",
       "for a primary: log not yet held by its follower; for a standby: log not yet applied",
       [](auto& g) { return g.lagBytes; });
  each("psd_replica_engine_answers", "whether the engine, which elects the primary, answers",
       [](auto& g) { return g.engine.empty() ? 1 : 0; });
}

/// One daemon's view of all daemons. For an unreachable one, psd_daemon_up is the only sample.
void writeDaemons(MetricWriter& out, const DaemonRows& all) {
  const auto each = [&](const char* name, const char* help, auto value) {
    out.begin(name, Type::gauge, help);
    for (const DaemonRow& row : all.daemons) {
      if (!row.answers) continue;
      out.sample(
          value(row),
          {{"partition", fmt::to_string(row.partition)}, {"role", row.role}, {"address", row.address}});
    }
  };
  out.begin("psd_daemon_up", Type::gauge,
            "for each daemon that serves the model or stands by: whether it answered the last request");
  for (const DaemonRow& row : all.daemons) {
    if (!row.polled && !row.here) continue;
    out.sample(row.answers ? 1 : 0,
               {{"partition", fmt::to_string(row.partition)}, {"role", row.role}, {"address", row.address}});
  }
  each("psd_daemon_term", "term of the daemon's replica set, 0 without an engine",
       [](auto& r) { return r.term; });
  each("psd_daemon_standby_in_sync", "for a primary: whether its standby is in sync",
       [](auto& r) { return r.standbyInSync ? 1 : 0; });
  each("psd_daemon_lag_bytes",
       "for a primary: log not yet held by its follower; for a standby: log not yet applied",
       [](auto& r) { return r.lagBytes; });
  each("psd_daemon_waits", "whether the daemon waits for something before it serves or follows",
       [](auto& r) { return r.waits.empty() ? 0 : 1; });
  each("psd_daemon_trainers", "trainers joined at the daemon", [](auto& r) { return r.trainers; });
  each("psd_daemon_resident_bytes", "memory of the daemon's process",
       [](auto& r) { return r.residentBytes; });
}

}  // namespace

std::string exposition(const DaemonStatus& status, const HttpMetrics& http, const DaemonRows& all) {
  MetricWriter out;
  writeDaemon(out, status);
  writeMetrics(out, status, http);
  writeTrainers(out, status);
  writeRounds(out, status.rounds);
  writeBlocks(out, status);
  writeDurability(out, status.durability);
  writePublish(out, status.publish);
  writeDisks(out, status.disks);
  writeProcessMetrics(out, status.openDescriptors);
  writeGroup(out, status.replicaSet);
  writeDaemons(out, all);
  return out.text();
}

}  // namespace psd
