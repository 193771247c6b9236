#include "server/config/daemon_config.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/config/json_file.h"
#include "common/config/object_reader.h"
#include "common/text/text.h"
#include "common/types/model_layout.h"
#include "server/config/model_rules.h"
#include "server/policy/policy_list.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kKiB = 1ull << 10, kMiB = 1ull << 20, kTiB = 1ull << 40;
constexpr uint64_t kShardsMax = 65'536;
constexpr uint64_t kSpinUsMax = 10'000;
constexpr uint64_t kThreadsMax = 256;
constexpr uint64_t kDefaultThreadsMax = 4;  // more loops help only from many trainers on
constexpr uint64_t kDayMs = 86'400'000;
constexpr uint64_t kLeaseMsMin = 500;  // the loops look at held-back connections twice in it

/// What a call needs in its message besides the slice itself; generous.
constexpr uint64_t kCallBytes = 4 * kKiB;

constexpr uint64_t kGrainBytes = kLayoutGrainElements * sizeof(float);

std::string element(std::string_view key, size_t index) {
  return std::string(key) + "[" + std::to_string(index) + "]";
}

std::vector<Address> readListen(ObjectReader& in) {
  std::vector<std::string> texts = in.texts("listen", {"tcp://localhost:5500"});
  if (texts.empty()) in.fail("listen", "must hold at least one address, as \"tcp://localhost:5500\"");
  std::vector<Address> addresses;
  for (size_t i = 0; i < texts.size(); i++) {
    Result<Address> address = parseAddress(texts[i]);
    if (!address.ok()) {
      in.fail(element("listen", i), address.message());
      continue;
    }
    const bool anyPort = address->kind == Address::Kind::tcp && address->port == 0;
    if (!anyPort && std::find(addresses.begin(), addresses.end(), *address) != addresses.end()) {
      in.fail(element("listen", i), "\"" + texts[i] + "\" is listed twice");
    }
    addresses.push_back(*std::move(address));
  }
  return addresses;
}

/// Other machines may come only where they have to show who they are, or somebody has said that they need
/// not.
void checkExposure(ObjectReader& in, const DaemonConfig& config) {
  for (size_t i = 0; i < config.listen.size(); i++) {
    const Address& address = config.listen[i];
    if (address.tls && !config.tls)
      in.fail(element("listen", i), "tls:// needs `tls`, with certificate and key");
    const bool asksForCertificates = address.tls && config.tls && config.tls->requireClient;
    if (isLocal(address) || config.auth || asksForCertificates || config.insecure) continue;
    in.fail(element("listen", i), address.toString() +
                                      " can be reached from other machines, and anybody there could train, "
                                      "read and stop: give `auth` with "
                                      "tokens, or tls:// with tls.require_client, or say \"insecure\": true "
                                      "(--insecure) on a network that "
                                      "you trust");
  }
  for (size_t i = 0; i < config.http.listen.size(); i++) {
    const Address& address = config.http.listen[i];
    if (address.tls && !config.tls)
      in.fail(element("http.listen", i), "tls:// needs `tls`, with certificate and key");
    const bool safe = address.tls && (config.auth || (config.tls && config.tls->requireClient));
    if (isLocal(address) || safe || config.insecure) continue;
    in.fail(element("http.listen", i),
            address.toString() + " can be reached from other machines" +
                (address.tls
                     ? ", and anybody there could act: give `auth` with tokens, or tls.require_client"
                     : ", and what goes over it is not encrypted: take " + std::string(kDefaultHttpAddress) +
                           " and from elsewhere ssh -L, or tls:// with `tls` and `auth`") +
                ", or say \"insecure\": true (--insecure) on a network that you trust");
  }
}

std::vector<DeviceChoice> readDeviceList(ObjectReader& in) {
  std::vector<std::string> texts = in.texts("devices", {});
  if (texts.empty()) in.fail("devices", "must hold at least one device, as \"cuda:0\"");
  std::vector<DeviceChoice> devices;
  for (size_t i = 0; i < texts.size(); i++) {
    Result<DeviceChoice> device = parseDevice(texts[i]);
    if (!device.ok()) {
      in.fail(element("devices", i), device.message());
    } else if (device->kind == DeviceChoice::Kind::automatic) {
      in.fail(element("devices", i), "\"auto\" stands alone, as \"device\": \"auto\"");
    } else if (std::find(devices.begin(), devices.end(), *device) != devices.end()) {
      in.fail(element("devices", i), "\"" + texts[i] + "\" is listed twice");
    } else {
      devices.push_back(*device);
    }
  }
  return devices;
}

std::vector<DeviceChoice> readDevices(ObjectReader& in) {
  bool hasOne = in.has("device"), hasList = in.has("devices");
  if (hasOne && hasList) {
    in.fail("devices", "stands in place of 'device'; give only one of the two");
  }
  if (hasList) return readDeviceList(in);
  Result<DeviceChoice> device = parseDevice(in.text("device", "auto"));
  if (!device.ok()) in.fail("device", device.message());
  return {device.ok() ? *device : DeviceChoice{}};
}

std::vector<TensorSpec> readTensors(ObjectReader& in) {
  std::vector<TensorSpec> tensors;
  for (ObjectReader& entry : in.objects("tensors")) {
    TensorSpec tensor;
    if (!entry.has("name")) entry.fail("name", "is needed");
    if (!entry.has("shape")) entry.fail("shape", "is needed, as [128, 784]; [] is a scalar");
    tensor.name = entry.text("name", "");
    tensor.shape = entry.integers("shape", {});
    // The one dtype that there is; the choice has checked it.
    tensor.dtype = *parseDType(entry.choice("dtype", dtypeName(DType::f32), {dtypeName(DType::f32)}));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<TableSpec> readTableSpecs(ObjectReader& in) {
  std::vector<TableSpec> tables;
  for (ObjectReader& entry : in.objects("tables")) {
    TableSpec table;
    if (!entry.has("name")) entry.fail("name", "is needed");
    if (!entry.has("dim")) entry.fail("dim", "is needed: the values of a row");
    table.name = entry.text("name", "");
    table.dim = static_cast<uint32_t>(entry.integer("dim", 1, 1, kTableDimMax));
    ObjectReader initial = entry.object("initial");
    const std::string kind = initial.choice("type", "uniform", {"zero", "uniform", "normal"});
    table.initial.kind = kind == "zero"     ? RowInitial::Kind::zero
                         : kind == "normal" ? RowInitial::Kind::normal
                                            : RowInitial::Kind::uniform;
    table.initial.scale =
        static_cast<float>(initial.number("scale", RowInitial::kScale, {.min = 0, .max = 1e6}));
    table.initial.seed = initial.integer("seed", table.initial.seed, 0, uint64_t{1} << 53);
    tables.push_back(std::move(table));
  }
  return tables;
}

ModelConfig readModel(ObjectReader in) {
  ModelConfig model;
  const bool hasNames = in.has("tensors") || in.has("tables"), hasFile = in.has("file");
  if (hasNames == hasFile) {
    in.fail("", hasFile ? "holds 'tensors' or 'tables', and 'file'; give only one of the two"
                        : "needs 'tensors', 'tables' or 'file'");
  }
  model.spec.name = in.text("name", "model");
  if (hasNames) {
    model.spec.tensors = readTensors(in);
    model.spec.tables = readTableSpecs(in);
    Status valid = validateModel(model.spec);
    if (!valid.ok()) in.fail("tensors", valid.message());
  }
  if (hasFile) {
    model.file = in.text("file", "");
    if (model.file.empty()) in.fail("file", "must be the path of a .safetensors file, not \"\"");
  }
  return model;
}

LogOptions readLog(ObjectReader in) {
  LogOptions log;
  log.level = in.choice("level", log.level, {"trace", "debug", "info", "warn", "error", "off"});
  log.format = in.choice("format", log.format, {"text", "json"});
  log.file = in.text("file", log.file);
  return log;
}

MembershipConfig readMembership(ObjectReader in) {
  MembershipConfig membership;
  membership.leaseMs = in.integer("lease_ms", membership.leaseMs, kLeaseMsMin, kDayMs);
  membership.graceMs = in.integer("grace_ms", membership.graceMs, 0, kDayMs);
  return membership;
}

Limits readLimits(ObjectReader in) {
  Limits limits;
  limits.connections = static_cast<uint32_t>(in.integer("connections", limits.connections, 1, kTrainersMax));
  limits.messageBytes = in.integer("message_bytes", limits.messageBytes, 64 * kKiB, 64 * kMiB);
  limits.sliceBytes = in.integer("slice_bytes", limits.sliceBytes, 4 * kKiB, 32 * kMiB);
  limits.inFlightBytes = in.integer("in_flight_bytes", limits.inFlightBytes, 64 * kKiB, kTiB);
  limits.calls = static_cast<uint32_t>(in.integer("calls", limits.calls, 16, kTrainersMax));
  limits.stagedBytes = in.integer("staged_bytes", limits.stagedBytes, 64 * kKiB, kTiB);
  limits.snapshotBytes = in.integer("snapshot_bytes", limits.snapshotBytes, 64 * kKiB, kTiB);
  limits.logPendingBytes = in.integer("log_pending_bytes", limits.logPendingBytes, 64 * kKiB, kTiB);
  limits.outgoingBytes = in.integer("outgoing_bytes", limits.outgoingBytes, 64 * kKiB, kTiB);
  limits.allOutgoingBytes = in.integer("all_outgoing_bytes", limits.allOutgoingBytes, 64 * kKiB, kTiB);
  limits.pullTimeoutMs = in.integer("pull_timeout_ms", limits.pullTimeoutMs, 1, kDayMs);
  limits.readTimeoutMs = in.integer("read_timeout_ms", limits.readTimeoutMs, 1, kDayMs);
  limits.loginTimeoutMs = in.integer("login_timeout_ms", limits.loginTimeoutMs, 100, kDayMs);
  limits.writeTimeoutMs = in.integer("write_timeout_ms", limits.writeTimeoutMs, 1, kDayMs);
  limits.drainMs = in.integer("drain_ms", limits.drainMs, 0, kDayMs);
  limits.ringBytes = in.integer("ring_bytes", limits.ringBytes, 0, kTiB);
  limits.allRingsBytes = in.integer("all_rings_bytes", limits.allRingsBytes, 0, kTiB);
  limits.tableBytes = in.integer("table_bytes", limits.tableBytes, 1, uint64_t{1} << 50);
  limits.sessionsBytes = in.integer("sessions_bytes", limits.sessionsBytes, 64 * kKiB, uint64_t{1} << 50);
  limits.arrivingBytes = in.integer("arriving_bytes", limits.arrivingBytes, 64 * kKiB, uint64_t{1} << 50);
  limits.modelBytes = in.integer("model_bytes", limits.modelBytes, 0, kModelElementsMax * sizeof(float));

  std::string slice = std::to_string(limits.sliceBytes);
  if (limits.sliceBytes % kGrainBytes != 0) {
    in.fail("slice_bytes", "must be a multiple of " + std::to_string(kGrainBytes) + ", not " + slice);
  }
  if (limits.inFlightBytes < limits.messageBytes) {
    in.fail("in_flight_bytes", "must be at least message_bytes (" + std::to_string(limits.messageBytes) +
                                   "), not " + std::to_string(limits.inFlightBytes));
  }
  if (limits.allRingsBytes < limits.ringBytes) {
    in.fail("all_rings_bytes", "must be at least ring_bytes (" + std::to_string(limits.ringBytes) +
                                   "), not " + std::to_string(limits.allRingsBytes));
  }
  // Both ways a slice must fit with the call around it, or nothing could ever be pushed or pulled.
  auto mustHoldSlice = [&](std::string_view key, uint64_t bytes) {
    if (bytes >= limits.sliceBytes + kCallBytes) return;
    in.fail("slice_bytes", "must be at least " + std::to_string(kCallBytes) + " less than " +
                               std::string(key) + " (" + std::to_string(bytes) + "), not " + slice);
  };
  mustHoldSlice("message_bytes", limits.messageBytes);
  mustHoldSlice("outgoing_bytes", limits.outgoingBytes);
  return limits;
}

uint64_t defaultThreads() {
  return std::clamp<uint64_t>(std::thread::hardware_concurrency(), 1, kDefaultThreadsMax);
}

/// The policies that tell of every update, for people.
std::string recordingPolicies() {
  std::string able;
  for (const PolicyEntry& entry : kPolicyList) {
    if (entry.traits.recordsUpdates) able += (able.empty() ? "" : ", ") + std::string(entry.type);
  }
  return able;
}

/// A log needs policies that tell it of every update.
void checkLogged(ObjectReader& in, const DaemonConfig& config) {
  if (config.durability.type != DurabilityConfig::Type::log) return;
  if (config.shmWritable) {
    in.fail("shm_writable",
            "does not go with durability.type \"log\", which is not told of what trainers write "
            "into the memory; \"checkpoint\" goes with it");
  }
  const std::string able = recordingPolicies();
  for (const GroupConfig& group : config.groups) {
    if (group.policy.plan.changesGradients) {
      in.fail("durability.type",
              "\"log\" replays gradients as they were pushed, so it does not go with policy.clip or "
              "policy.delay_compensation; \"checkpoint\" goes with both");
    }
    if (group.policy.traits.recordsUpdates) continue;
    in.fail("durability.type", "\"log\" goes with the policies " + able + ", not with " + group.policy.type +
                                   "; \"checkpoint\" goes with any");
  }
}

/// A standby is told of every update, as a log is.
void checkReplicated(ObjectReader& in, const DaemonConfig& config) {
  if (config.shmWritable) {
    in.fail("shm_writable",
            "goes with no `engine`: a standby is not told of what trainers write into the memory");
  }
  for (const GroupConfig& group : config.groups) {
    if (!group.policy.traits.recordsUpdates) {
      in.fail("engine", "a standby follows update by update, so it goes with the policies " +
                            recordingPolicies() + ", not with " + group.policy.type);
    }
    if (group.policy.plan.changesGradients) {
      in.fail("engine",
              "a standby gets gradients as they were pushed, so it does not go with policy.clip or "
              "policy.delay_compensation");
    }
  }
  const bool disk = config.replication.wait == ReplicationConfig::Wait::standbyAndDisk;
  if (disk && config.durability.type != DurabilityConfig::Type::log) {
    in.fail("replication.wait",
            "\"standby_and_disk\" waits for the log on the disk, so it goes with durability.type log, not " +
                std::string(durabilityName(config.durability.type)));
  }
}

/// So many trainers are let in, and they do for the rounds.
void checkWorldSize(ObjectReader& in, const DaemonConfig& config) {
  if (!config.worldSize) return;
  if (config.worldSize->max > config.limits.connections) {
    in.fail("world_size", "must be at most limits.connections (" + std::to_string(config.limits.connections) +
                              "), not " + std::to_string(config.worldSize->max));
  }
  if (Status status = checkTrainersSuffice(config.groups, config.worldSize->max); !status.ok()) {
    in.fail("world_size", status.message());
  }
}

/// Each daemon has a part of each gradient alone.
void checkPartitioned(ObjectReader& in, const DaemonConfig& config) {
  if (!config.daemons.several()) return;
  in.refuse("model",
            "goes with one daemon: where several serve a model, the first trainer brings it (its values: "
            "psd-trainer --init)");
  for (size_t i = 0; i < config.groups.size(); i++) {
    const PolicyPlan& plan = config.groups[i].policy.plan;
    const std::string path = pathOf(config.groups, i, "policy");
    if (plan.rounds.unbounded) {
      in.fail("daemons",
              "each closes its rounds by itself, and after one was away two trainers can come to wait for "
              "each other in the rounds of two daemons: give " +
                  path + ".round_timeout_ms, with on_timeout \"proceed\"");
    }
    const std::string& why = plan.needsWholeGradient;
    if (why.empty()) continue;
    in.fail("daemons", "each has a part of a gradient alone, and " + path + " needs the whole: " + why);
  }
  const bool forgets = config.durability.type == DurabilityConfig::Type::none && !config.engine;
  if (config.groups.front().fragment && forgets) {
    in.fail(
        "durability.type",
        "must be \"log\" or \"checkpoint\" with fragments and several daemons: one that was started "
        "anew would count its rounds from 0, and learners exchange its fragments alone until they are as far "
        "as the others");
  }
}

/// One thing that the command line changes, and how to call it in an error.
struct Override {
  std::string flag;  ///< as the user wrote it
  std::string key;   ///< what it sets, as a JSON path
};

Result<std::vector<Override>> applyOverrides(Json& document, const ConfigOverrides& overrides) {
  std::vector<Override> applied;
  if (!document.is_object()) return applied;  // readDaemonConfig() says so
  const auto notText = [](const std::string& flag, const std::string& value) {
    return Error{ErrorCode::invalidArgument, flag + " " + printable(value) + ": the value is not UTF-8 text"};
  };
  for (const std::string& address : overrides.listen) {
    if (!isUtf8(address)) return notText("--listen", address);
  }
  if (overrides.http && !isUtf8(*overrides.http)) return notText("--http", *overrides.http);
  if (overrides.device && !isUtf8(*overrides.device)) return notText("--device", *overrides.device);
  if (!overrides.listen.empty()) {
    document["listen"] = overrides.listen;
    for (size_t i = 0; i < overrides.listen.size(); i++) {
      applied.push_back({"--listen " + printable(overrides.listen[i]), element("listen", i)});
    }
  }
  if (overrides.http) {
    if (Status status = applyOverride(document, "http.listen=[]"); !status.ok()) {
      return Error{status.error().code, "--http: " + status.message()};
    }
    document["http"]["listen"] = {*overrides.http};
    applied.push_back({"--http " + printable(*overrides.http), element("http.listen", 0)});
  }
  if (overrides.insecure) {
    document["insecure"] = true;
    applied.push_back({"--insecure", "insecure"});
  }
  if (overrides.device) {
    document.erase("devices");
    document["device"] = *overrides.device;
    applied.push_back({"--device " + printable(*overrides.device), "device"});
  }
  if (overrides.index) {
    if (Status status = applyOverride(document, "index=" + *overrides.index); !status.ok()) {
      return Error{status.error().code, "--index: " + status.message()};
    }
    applied.push_back({"--index " + printable(*overrides.index), "index"});
  }
  for (const std::string& assignment : overrides.assignments) {
    if (Status status = applyOverride(document, assignment); !status.ok()) {
      return Error{status.error().code, "--set " + status.message()};
    }
    applied.push_back({"--set " + printable(assignment), assignment.substr(0, assignment.find('='))});
  }
  return applied;
}

/// Where the value at fault comes from: the last flag that set it or what it lies in, else the file.
std::string blame(const std::string& message, const std::vector<Override>& applied, const std::string& path) {
  for (size_t i = applied.size(); i-- > 0;) {
    const Override& override = applied[i];
    if (!message.starts_with(override.key) || message.size() <= override.key.size()) continue;
    if (std::string_view(":.[").find(message[override.key.size()]) != std::string_view::npos) {
      return override.flag + ": ";
    }
  }
  return path.empty() ? "" : path + ": ";
}

/// {"aggregator": "median"} is short for {"aggregator": {"type": "median"}}, of whatever policy.
void spellOutAggregator(Json& policy) {
  const auto found = policy.is_object() ? policy.find("aggregator") : policy.end();
  if (found != policy.end() && found->is_string()) *found = Json{{"type", *found}};
}

void spellOutAggregators(Json& document) {
  if (!document.is_object()) return;
  if (const auto policy = document.find("policy"); policy != document.end()) spellOutAggregator(*policy);
  const auto groups = document.find("groups");
  if (groups == document.end() || !groups->is_array()) return;
  for (Json& group : *groups) {
    if (!group.is_object()) continue;
    if (const auto policy = group.find("policy"); policy != group.end()) spellOutAggregator(*policy);
  }
}

}  // namespace

Result<LoadedConfig> readDaemonConfig(Json document) {
  if (document.is_object()) document.erase("$schema");
  spellOutAggregators(document);
  ObjectReader in(std::move(document));
  DaemonConfig config;
  config.listen = readListen(in);
  if (in.has("auth")) config.auth = readAuth(in.object("auth"));
  if (in.has("tls")) config.tls = readTls(in.object("tls"));
  config.insecure = in.boolean("insecure", config.insecure);
  config.http = readHttp(in.object("http"));
  if (in.has("engine")) config.engine = readEngine(in.object("engine"), config.insecure);
  checkExposure(in, config);
  config.daemons = readDaemons(in);
  config.devices = readDevices(in);
  if (in.has("shards")) config.shards = static_cast<uint32_t>(in.integer("shards", 1, 1, kShardsMax));
  if (config.shards && *config.shards < config.devices.size()) {
    in.fail("shards", "must be at least the number of devices (" + std::to_string(config.devices.size()) +
                          "), not " + std::to_string(*config.shards));
  }
  config.threads = static_cast<uint32_t>(in.integer("threads", defaultThreads(), 1, kThreadsMax));
  config.spin = std::chrono::microseconds(in.integer("spin_us", 0, 0, kSpinUsMax));
  config.groups = readGroups(in);
  config.tables = readTables(in);
  if (in.has("model")) config.model = readModel(in.object("model"));
  if (in.has("world_size")) {
    config.worldSize = readWorldSize(in);
  }
  config.codecs = readCodecs(in.object("codecs"));
  if (const auto codec = config.codecs.push.choose(""); codec.ok()) {
    const Status fits = checkPushCodec(**codec, config.groups);
    if (!fits.ok()) in.fail("codecs.push.default", fits.message());
  }
  if (!config.groups.back().policy.local.deltas.empty() && config.codecs.pull.fallback != "none") {
    in.fail("codecs.pull.default", "does not go with policy.deltas, by which pulls are differences");
  }
  config.membership = readMembership(in.object("membership"));
  config.shmWritable = in.boolean("shm_writable", config.shmWritable);
  config.exitWhenDone = in.boolean("exit_when_done", config.exitWhenDone);
  config.save = in.text("save", config.save);
  config.durability = readDurability(in.object("durability"));
  checkLogged(in, config);
  if (config.engine) {
    config.replication = readReplication(in.object("replication"));
    checkReplicated(in, config);
  } else {
    in.refuse("replication", "goes with `engine`: without one a daemon has no standby");
  }
  checkPartitioned(in, config);
  config.log = readLog(in.object("log"));
  config.limits = readLimits(in.object("limits"));
  checkWorldSize(in, config);
  PSD_RETURN_IF_ERROR(in.finish());
  if (config.model && config.model->file.empty()) {
    PSD_RETURN_IF_ERROR(assignGroups(config.model->spec, config.groups).status());
    PSD_RETURN_IF_ERROR(assignTables(config.model->spec, config.tables).status());
  }
  LoadedConfig loaded{std::move(config), in.effective()};
  if (loaded.config.daemons.several()) loaded.config.daemons.rules = rulesText(loaded.effective);
  return loaded;
}

Result<LoadedConfig> loadDaemonConfig(Env& env, const std::string& path, const ConfigOverrides& overrides) {
  Json document = Json::object();
  if (!path.empty()) {
    PSD_ASSIGN_OR_RETURN(document, readJsonFile(env, path));
  }
  PSD_ASSIGN_OR_RETURN(std::vector<Override> applied, applyOverrides(document, overrides));
  Result<LoadedConfig> loaded = readDaemonConfig(std::move(document));
  if (loaded.ok()) return loaded;
  return Error{loaded.error().code, blame(loaded.message(), applied, path) + loaded.message()};
}

std::optional<SharedAccess> weightsToShare(const DaemonConfig& config) {
  const bool local = std::any_of(config.listen.begin(), config.listen.end(), [](const Address& address) {
    return address.kind == Address::Kind::unixSocket;
  });
  const bool live = std::all_of(config.groups.begin(), config.groups.end(),
                                [](const GroupConfig& group) { return group.policy.traits.readsLive; });
  if (!local || !live) return {};
  return config.shmWritable ? SharedAccess::readWrite : SharedAccess::readOnly;
}

}  // namespace psd
