#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/metrics/metric_values.h"
#include "server/status/publish_status.h"
#include "server/status/replica_set_status.h"

namespace psd {

// A daemon's status, as plain values. Each object of the daemon fills in its part; status_json.h and
// status_table.h render the whole. fields() of a struct passes the name and value of each field to a visitor
// and is the only place that names them. Durations are in seconds; names end with the unit, if any.
// docs/reference/status.md explains them.

struct ModelStatus {
  std::string name;
  uint64_t parameters = 0;  ///< without padding
  uint64_t tensors = 0;
  uint64_t buffers = 0, bufferBytes = 0;  ///< number, and the bytes of their values
  bool ready = false;                     ///< it is initialized

  static void fields(auto& visit, auto& self) {
    visit("name", self.name);
    visit("parameters", self.parameters);
    visit("tensors", self.tensors);
    visit("buffers", self.buffers);
    visit("buffer_bytes", self.bufferBytes);
    visit("ready", self.ready);
  }
};

struct ShardStatus {
  uint32_t id = 0;
  uint64_t begin = 0, elements = 0;  ///< position in the layout
  std::string group;
  std::string device;
  uint64_t version = 0;

  static void fields(auto& visit, auto& self) {
    visit("id", self.id);
    visit("begin", self.begin);
    visit("elements", self.elements);
    visit("group", self.group);
    visit("device", self.device);
    visit("version", self.version);
  }
};

/// An embedding table, over all row shards.
struct TableStatus {
  std::string name;
  uint32_t dim = 0;
  std::string group;
  uint64_t rows = 0;
  uint64_t rowBytes = 0;    ///< rows with optimizer state
  uint64_t indexBytes = 0;  ///< index from ids to rows
  uint64_t splits = 0;      ///< of index segments
  double load = 0;          ///< of the index's places, 0 … 1
  uint64_t pulledRows = 0, unknownRows = 0, pushedRows = 0, newRows = 0, refusedRows = 0;
  uint64_t notAdmittedRows = 0, evictedRows = 0;
  double longestInsertSeconds = 0;

  static void fields(auto& visit, auto& self) {
    visit("name", self.name);
    visit("dim", self.dim);
    visit("group", self.group);
    visit("rows", self.rows);
    visit("row_bytes", self.rowBytes);
    visit("index_bytes", self.indexBytes);
    visit("splits", self.splits);
    visit("pulled_rows", self.pulledRows);
    visit("unknown_rows", self.unknownRows);
    visit("pushed_rows", self.pushedRows);
    visit("new_rows", self.newRows);
    visit("refused_rows", self.refusedRows);
    visit("not_admitted_rows", self.notAdmittedRows);
    visit("evicted_rows", self.evictedRows);
    visit("load", self.load);
    visit("longest_insert_seconds", self.longestInsertSeconds);
  }
};

/// A part of the embedding tables' rows, updated together.
struct RowShardStatus {
  uint32_t id = 0;
  uint64_t begin = 0, hashUnits = 0;  ///< range of id hashes, in a space of 2^32 units
  std::string group;
  std::string device;
  uint64_t rows = 0;
  uint64_t version = 0;

  static void fields(auto& visit, auto& self) {
    visit("id", self.id);
    visit("begin", self.begin);
    visit("hash_units", self.hashUnits);
    visit("group", self.group);
    visit("device", self.device);
    visit("rows", self.rows);
    visit("version", self.version);
  }
};

/// A value that a trainer reported.
struct ReportedStatus {
  std::string name;
  std::optional<double> value;  ///< nothing: infinite or NaN

  static void fields(auto& visit, auto& self) {
    visit("name", self.name);
    visit("value", self.value);
  }
};

struct TrainerStatus {
  uint32_t rank = 0;
  std::string host;
  uint32_t pid = 0;
  std::string process;  ///< 8 hexadecimal digits that identify the process
  uint64_t step = 0;
  uint64_t staleness = 0;
  HistogramValue stalenessHistogram;
  uint64_t batch = 0;
  uint32_t nominalBatch = 0;
  uint64_t pulledBytes = 0, pushedBytes = 0;            ///< as transferred
  uint64_t pulledValueBytes = 0, pushedValueBytes = 0;  ///< as float32
  std::string codec, pullCodec;
  double lastSeenSeconds = 0;
  std::string waitsFor;  ///< empty: it is not waiting
  bool connected = false;
  uint64_t connections = 0;
  double leaseLeftSeconds = 0;
  uint64_t reportedStep = 0;
  std::vector<ReportedStatus> reports;

  static void fields(auto& visit, auto& self) {
    visit("rank", self.rank);
    visit("host", self.host);
    visit("pid", self.pid);
    visit("process", self.process);
    visit("step", self.step);
    visit("staleness", self.staleness);
    visit("staleness_histogram", self.stalenessHistogram);
    visit("batch", self.batch);
    visit("nominal_batch", self.nominalBatch);
    visit("pulled_bytes", self.pulledBytes);
    visit("pushed_bytes", self.pushedBytes);
    visit("pulled_value_bytes", self.pulledValueBytes);
    visit("pushed_value_bytes", self.pushedValueBytes);
    visit("codec", self.codec);
    visit("pull_codec", self.pullCodec);
    visit("last_seen_seconds", self.lastSeenSeconds);
    visit("waits_for", self.waitsFor);
    visit("connected", self.connected);
    visit("connections", self.connections);
    visit("lease_left_seconds", self.leaseLeftSeconds);
    visit("reported_step", self.reportedStep);
    visit("reports", self.reports);
  }
};

/// The bridge that averages this machine's parameters with those of other machines.
struct BridgeStatus {
  std::string host;
  uint32_t pid = 0;
  std::string process;       ///< as in TrainerStatus
  uint64_t differences = 0;  ///< number that it has added
  double lastSeenSeconds = 0;
  bool connected = false;

  static void fields(auto& visit, auto& self) {
    visit("host", self.host);
    visit("pid", self.pid);
    visit("process", self.process);
    visit("differences", self.differences);
    visit("last_seen_seconds", self.lastSeenSeconds);
    visit("connected", self.connected);
  }
};

/// Progress of the assignment of samples.
struct SamplesStatus {
  uint64_t epoch = 0;  ///< samples per epoch
  uint64_t epochs = 0;
  uint64_t done = 0;  ///< samples

  static void fields(auto& visit, auto& self) {
    visit("epoch", self.epoch);
    visit("epochs", self.epochs);
    visit("done", self.done);
  }
};

/// A trainer that others wait for.
struct AwaitedStatus {
  uint32_t rank = 0;
  double waitedSeconds = 0;

  static void fields(auto& visit, auto& self) {
    visit("rank", self.rank);
    visit("waited_seconds", self.waitedSeconds);
  }
};

/// A round or a staleness bound in which trainers wait for others.
struct WaitingStatus {
  std::string group, policy;
  std::string what;  ///< "round 17"
  uint32_t joins = 0;
  std::vector<uint32_t> ranks;
  std::vector<AwaitedStatus> awaited;

  static void fields(auto& visit, auto& self) {
    visit("group", self.group);
    visit("policy", self.policy);
    visit("what", self.what);
    visit("joins", self.joins);
    visit("ranks", self.ranks);
    visit("for", self.awaited);
  }
};

/// A trainer without which rounds closed.
struct LeftOutStatus {
  uint32_t rank = 0;
  uint64_t rounds = 0;
  uint64_t running = 0;  ///< consecutive last ones of these

  static void fields(auto& visit, auto& self) {
    visit("rank", self.rank);
    visit("rounds", self.rounds);
    visit("running", self.running);
  }
};

/// The rounds of a parameter group.
struct RoundsStatus {
  std::string group, policy;
  uint64_t closed = 0;
  std::optional<uint64_t> generation;  ///< of the averaging group, which is `in`; nothing: trainers push
  std::vector<uint32_t> in, missing;   ///< ranks in the last round, and left out of it
  std::vector<uint32_t> late;          ///< those in it whose contribution was computed for an earlier round
  double openSeconds = 0;              ///< duration of the last round
  std::optional<double> graceSeconds;  ///< of it, from the quorum on; nothing: no grace is configured
  std::vector<uint32_t> contributed;   ///< ranks that have contributed to the open round
  std::optional<double> graceLeftSeconds;  ///< nothing: no grace period is running
  std::vector<LeftOutStatus> leftOut;      ///< by rank, of joined trainers

  static void fields(auto& visit, auto& self) {
    visit("group", self.group);
    visit("policy", self.policy);
    visit("closed", self.closed);
    visit("generation", self.generation);
    visit("in", self.in);
    visit("missing", self.missing);
    visit("late", self.late);
    visit("open_seconds", self.openSeconds);
    visit("grace_seconds", self.graceSeconds);
    visit("contributed", self.contributed);
    visit("grace_left_seconds", self.graceLeftSeconds);
    visit("left_out", self.leftOut);
  }
};

/// The largest learning rate of a parameter group: of the newest pushes that carried one, else of the next
/// update.
struct LearningRateStatus {
  std::string group;
  double rate = 0;

  static void fields(auto& visit, auto& self) {
    visit("group", self.group);
    visit("rate", self.rate);
  }
};

/// The file system of a folder to which the daemon writes.
struct DiskStatus {
  std::string path;
  uint64_t freeBytes = 0;  ///< for this user
  uint64_t sizeBytes = 0;

  static void fields(auto& visit, auto& self) {
    visit("path", self.path);
    visit("free_bytes", self.freeBytes);
    visit("size_bytes", self.sizeBytes);
  }
};

struct CheckpointStatus {
  std::string path;
  double ageSeconds = 0;
  double durationSeconds = 0;
  double pauseSeconds = 0;  ///< longest wait of a push for it
  uint64_t writtenBytes = 0;
  uint64_t updates = 0;  ///< in it, over all shards

  static void fields(auto& visit, auto& self) {
    visit("path", self.path);
    visit("age_seconds", self.ageSeconds);
    visit("duration_seconds", self.durationSeconds);
    visit("pause_seconds", self.pauseSeconds);
    visit("written_bytes", self.writtenBytes);
    visit("updates", self.updates);
  }
};

/// A checkpoint on disk.
struct KeptCheckpointStatus {
  std::string path;
  std::string created;  ///< UTC, as in its manifest
  uint64_t diskBytes = 0;

  static void fields(auto& visit, auto& self) {
    visit("path", self.path);
    visit("created", self.created);
    visit("disk_bytes", self.diskBytes);
  }
};

struct LogStatus {
  uint64_t records = 0;
  uint64_t writtenBytes = 0;
  uint64_t diskBytes = 0;  ///< of all retained segments
  uint64_t syncs = 0;
  uint64_t lost = 0;  ///< updates not written
  uint64_t failures = 0;
  std::string error;  ///< empty: the log is intact

  static void fields(auto& visit, auto& self) {
    visit("records", self.records);
    visit("written_bytes", self.writtenBytes);
    visit("disk_bytes", self.diskBytes);
    visit("syncs", self.syncs);
    visit("lost", self.lost);
    visit("failures", self.failures);
    visit("error", self.error);
  }
};

struct DurabilityStatus {
  std::string type = "none";
  std::string path;
  double checkpointIntervalSeconds = 0;  ///< as configured; 0: checkpoints are not taken by time
  std::optional<CheckpointStatus> lastCheckpoint;
  uint64_t checkpoints = 0;
  double checkpointPauseMaxSeconds = 0;
  uint64_t checkpointCopyBytes = 0;
  uint64_t checkpointDiskBytes = 0;        ///< of all retained checkpoints
  std::vector<KeptCheckpointStatus> kept;  ///< the newest retained checkpoints, oldest first
  uint64_t checkpointFailures = 0;
  std::string error;             ///< empty: the last attempt succeeded
  std::optional<LogStatus> log;  ///< nothing: no log, or nothing to write yet

  static void fields(auto& visit, auto& self) {
    visit("type", self.type);
    visit("path", self.path);
    visit("checkpoint_interval_seconds", self.checkpointIntervalSeconds);
    visit("last_checkpoint", self.lastCheckpoint);
    visit("checkpoints", self.checkpoints);
    visit("checkpoint_pause_max_seconds", self.checkpointPauseMaxSeconds);
    visit("checkpoint_copy_bytes", self.checkpointCopyBytes);
    visit("checkpoint_disk_bytes", self.checkpointDiskBytes);
    visit("kept", self.kept);
    visit("checkpoint_failures", self.checkpointFailures);
    visit("error", self.error);
    visit("log", self.log);
  }
};

/// Memory held for peers; all except staged_bytes have a budget in MemoryBudgets.
struct HeldBytes {
  uint64_t inFlight = 0, rings = 0, snapshots = 0, logPending = 0, outgoing = 0, staged = 0, arriving = 0;

  static void fields(auto& visit, auto& self) {
    visit("in_flight_bytes", self.inFlight);
    visit("ring_bytes", self.rings);
    visit("snapshot_bytes", self.snapshots);
    visit("log_pending_bytes", self.logPending);
    visit("outgoing_bytes", self.outgoing);
    visit("staged_bytes", self.staged);
    visit("arriving_bytes", self.arriving);
  }
};

/// Limits of HeldBytes, under their configuration names.
struct HeldLimits {
  uint64_t inFlight = 0, rings = 0, snapshots = 0, logPending = 0, outgoing = 0, staged = 0, arriving = 0;

  static void fields(auto& visit, auto& self) {
    visit("in_flight_bytes", self.inFlight);
    visit("staged_bytes", self.staged);
    visit("snapshot_bytes", self.snapshots);
    visit("log_pending_bytes", self.logPending);
    visit("all_outgoing_bytes", self.outgoing);
    visit("all_rings_bytes", self.rings);
    visit("arriving_bytes", self.arriving);
  }
};

/// For a daemon that serves a model together with others.
struct PartitionStatus {
  uint32_t index = 0, of = 1;        ///< this daemon's partition
  std::vector<std::string> daemons;  ///< by partition, the addresses of each, "A,B"

  static void fields(auto& visit, auto& self) {
    visit("index", self.index);
    visit("of", self.of);
    visit("daemons", self.daemons);
  }
};

struct DaemonStatus {
  std::string version;
  uint32_t pid = 0;
  std::string host;
  double uptimeSeconds = 0;
  std::vector<std::string> addresses;
  std::vector<std::string> pages;  ///< URLs of its page: "http://localhost:5580/", "unix:///PATH"
  uint32_t threads = 0;
  uint64_t residentBytes = 0;
  uint64_t openDescriptors = 0;     ///< as last counted
  uint64_t logLinesDropped = 0;     ///< of the program's log: its target was too slow
  uint64_t logLinesSuppressed = 0;  ///< of the program's log: peers without access caused too many
  HeldBytes held;                   ///< its fields are inlined in the document
  HeldLimits limits;
  std::string state;
  bool losesModel = false;             ///< whether the end of the run would lose the model
  std::vector<std::string> movedTo;    ///< by partition, the addresses to which the model has moved, "A,B"
  std::vector<std::string> movedFrom;  ///< addresses of the previous lead, if the model has moved here
  std::string policy, optimizer;
  std::optional<ModelStatus> model;
  std::optional<PartitionStatus> partition;  ///< if several daemons serve the model
  std::vector<ShardStatus> shards;
  std::vector<TableStatus> tables;
  std::vector<RowShardStatus> rowShards;
  uint32_t worldSize = 0, worldSizeMin = 0;
  uint64_t trainersLost = 0;
  std::vector<TrainerStatus> trainers;
  std::optional<BridgeStatus> bridge;  ///< if there is one
  std::optional<SamplesStatus> samples;
  std::vector<WaitingStatus> waiting;
  std::vector<RoundsStatus> rounds;  ///< of the policies with rounds
  std::vector<LearningRateStatus> learningRates;
  DurabilityStatus durability;
  std::optional<PublishStatus> publish;  ///< if it is configured
  std::vector<DiskStatus> disks;
  std::optional<uint64_t> certificateExpirySeconds;  ///< Unix time; nothing: there is no `tls`
  std::optional<ReplicaSetStatus> replicaSet;        ///< if an engine is configured
  double gradientsPerSecond = 0;                     ///< over the last ten seconds
  MetricValues<Counter> counters;
  MetricValues<Gauge> gauges;
  MetricValues<Histogram> histograms;

  /// Whether parameters are in several groups; the name of a single group carries no information.
  bool hasSeveralGroups() const;

  static void fields(auto& visit, auto& self) {
    visit("version", self.version);
    visit("pid", self.pid);
    visit("host", self.host);
    visit("uptime_seconds", self.uptimeSeconds);
    visit("addresses", self.addresses);
    visit("pages", self.pages);
    visit("threads", self.threads);
    visit("resident_bytes", self.residentBytes);
    visit("open_fds", self.openDescriptors);
    visit("log_lines_dropped", self.logLinesDropped);
    visit("log_lines_suppressed", self.logLinesSuppressed);
    HeldBytes::fields(visit, self.held);
    visit("limits", self.limits);
    visit("state", self.state);
    visit("loses_model", self.losesModel);
    visit("moved_to", self.movedTo);
    visit("moved_from", self.movedFrom);
    visit("policy", self.policy);
    visit("optimizer", self.optimizer);
    visit("model", self.model);
    visit("partition", self.partition);
    visit("shards", self.shards);
    visit("tables", self.tables);
    visit("row_shards", self.rowShards);
    visit("world_size", self.worldSize);
    visit("world_size_min", self.worldSizeMin);
    visit("trainers_lost", self.trainersLost);
    visit("trainers", self.trainers);
    visit("bridge", self.bridge);
    visit("samples", self.samples);
    visit("waiting", self.waiting);
    visit("rounds", self.rounds);
    visit("learning_rates", self.learningRates);
    visit("durability", self.durability);
    visit("publish", self.publish);
    visit("disks", self.disks);
    visit("certificate_expiry_timestamp_seconds", self.certificateExpirySeconds);
    visit("replica_set", self.replicaSet);
    visit("gradients_per_second", self.gradientsPerSecond);
    visit("counters", self.counters);
    visit("gauges", self.gauges);
    visit("histograms", self.histograms);
  }
};

}  // namespace psd
