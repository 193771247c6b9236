#include "server/config/daemon_keys.h"

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "server/config/addresses.h"
#include "server/config/store_rules.h"
#include "server/policy/policy_list.h"

namespace psd {
namespace {

constexpr uint64_t kShardsMax = 65'536;
constexpr uint64_t kSpinUsMax = 10'000;
constexpr uint64_t kThreadsMax = 256;
constexpr uint32_t kDefaultThreadsMax = 4;  // more loops pay off with many trainers alone
constexpr uint64_t kMembershipMsMax = 86'400'000;
constexpr uint64_t kLeaseMsMin = 500;  // the loops check held-back connections twice in it
constexpr unsigned kLive = Key::kLive, kOfDaemon = Key::kOfDaemon;

std::vector<Address> readListen(ConfigReader& in) {
  std::vector<std::string> texts = {"tcp://localhost:5500"};
  in.texts({"listen",
            "Addresses for trainers and operators: `tcp://HOST:PORT` (port 0: any free port; `*`: all "
            "interfaces; `[::1]`: IPv6), `tls://HOST:PORT` or `unix:///PATH`. `?multipath` after one of the "
            "first two: several networks at the same time, where both machines have Multipath TCP.",
            kOfDaemon},
           texts, addressList(1));
  if (texts.empty()) in.fail("listen", "must hold at least one address, as \"tcp://localhost:5500\"");
  return parseAddresses(in, "listen", texts);
}

/// No two addresses may be of one port or path.
void checkDistinct(ConfigReader& in, const DaemonConfig& config) {
  std::vector<std::pair<std::string, const Address*>> before;
  const auto same = [](const Address& a, const Address& b) {
    if (a.kind != b.kind || a.kind == Address::Kind::unixSocket) return a.kind == b.kind && a.path == b.path;
    return a.port != 0 && a.port == b.port && (a.host == b.host || a.host == "*" || b.host == "*");
  };
  const auto check = [&](std::string_view key, const std::vector<Address>& addresses) {
    for (size_t i = 0; i < addresses.size(); i++) {
      const std::string path = elementPath(key, i);
      for (const auto& [other, address] : before) {
        if (!same(*address, addresses[i])) continue;
        in.fail(path, "\"" + addresses[i].toString() + "\" cannot be listened on beside \"" +
                          address->toString() + "\" of " + other);
      }
      before.emplace_back(path, &addresses[i]);
    }
  };
  check("listen", config.listen);
  check("http.listen", config.http.listen);
}

/// Addresses that other machines reach need authentication, or `insecure`.
void checkExposure(ConfigReader& in, const DaemonConfig& config) {
  for (size_t i = 0; i < config.listen.size(); i++) {
    const Address& address = config.listen[i];
    if (address.tls && !config.tls)
      in.fail(elementPath("listen", i), "tls:// needs `tls`, with certificate and key");
    const bool asksForCertificates = address.tls && config.tls && config.tls->requireClient;
    if (isLocal(address) || config.auth || asksForCertificates || config.insecure) continue;
    in.fail(elementPath("listen", i),
            address.toString() +
                " can be reached from other machines, and any host could train, "
                "read and stop: give `auth` with "
                "tokens, or tls:// with tls.require_client, or set \"insecure\": true "
                "(--insecure) on a network that "
                "you trust");
  }
  for (size_t i = 0; i < config.http.listen.size(); i++) {
    const Address& address = config.http.listen[i];
    if (address.tls && !config.tls)
      in.fail(elementPath("http.listen", i), "tls:// needs `tls`, with certificate and key");
    const bool safe = address.tls && (config.auth || (config.tls && config.tls->requireClient));
    if (isLocal(address) || safe || config.insecure) continue;
    in.fail(elementPath("http.listen", i),
            address.toString() + " can be reached from other machines" +
                (address.tls
                     ? ", and any host could send commands: give `auth` with tokens, or tls.require_client"
                     : ", and traffic is not encrypted: use " + std::string(kDefaultHttpAddress) +
                           " with ssh -L from other hosts, or tls:// with `tls` and `auth`") +
                ", or set \"insecure\": true (--insecure) on a network that you trust");
  }
}

/// A pattern for "cuda:N" and other names.
std::string devicePattern(const std::string& others) {
  return "^(" + others + "|cuda:([0-9]|[1-5][0-9]|6[0-3]))$";
}

std::vector<DeviceChoice> parseDevices(ConfigReader& in, const std::vector<std::string>& texts) {
  if (texts.empty()) in.fail("devices", "must hold at least one device, as \"cuda:0\"");
  std::vector<DeviceChoice> devices;
  for (size_t i = 0; i < texts.size(); i++) {
    Result<DeviceChoice> device = parseDevice(texts[i]);
    if (!device.ok()) {
      in.fail(elementPath("devices", i), device.message());
    } else if (device->kind == DeviceChoice::Kind::automatic) {
      in.fail(elementPath("devices", i), "\"auto\" stands alone, as \"device\": \"auto\"");
    } else if (std::find(devices.begin(), devices.end(), *device) != devices.end()) {
      in.fail(elementPath("devices", i), "\"" + texts[i] + "\" is listed twice");
    } else {
      devices.push_back(*device);
    }
  }
  return devices;
}

std::vector<DeviceChoice> readDevices(ConfigReader& in) {
  const bool hasOne = in.has("device"), hasList = in.has("devices");
  if (hasOne && hasList) {
    in.fail("devices", "stands in place of 'device'; give only one of the two");
  }
  in.rule({{"not", {{"required", {"device", "devices"}}}}});
  std::string text = "auto";
  if (in.describes() || !hasList) {
    in.text({"device",
             "Device of the parameters and of the rows of embedding tables, whose index is always on the "
             "host: `auto`, `cpu` or `cuda:N`, N from 0 to 63. `auto`: CUDA device 0; the CPU where there is "
             "none or, with a warning, where it cannot be used.",
             kOfDaemon},
            text, {{"pattern", devicePattern("auto|cpu")}, {"examples", {"auto", "cpu", "cuda:0"}}});
  }
  std::vector<std::string> texts;
  if (in.describes() || hasList) {
    in.texts(
        {"devices",
         "Several devices, each once, in place of `device`: `cpu` and `cuda:N`. Shards, and after them row "
         "shards, are placed on them in turn.",
         kOfDaemon | Key::kNoDefault},
        texts, {{"items", {{"pattern", devicePattern("cpu")}}}, {"minItems", 1}, {"uniqueItems", true}});
  }
  if (hasList) return parseDevices(in, texts);
  Result<DeviceChoice> device = parseDevice(text);
  if (!device.ok()) in.fail("device", device.message());
  return {device.ok() ? *device : DeviceChoice{}};
}

LogOptions readLog(ConfigReader in) {
  LogOptions log;
  const auto choice = [&in](const Key& key, std::string& value, const std::vector<std::string_view>& names) {
    std::vector<std::pair<std::string_view, std::string>> all;
    for (const std::string_view name : names) all.emplace_back(name, name);
    in.choice<std::string>(key, value, all);
  };
  choice({"level", "Least severe level of the messages that are logged.", kLive}, log.level,
         {"trace", "debug", "info", "warn", "error", "off"});
  choice({"format",
          "Text lines, or one JSON object per line with `time` (UTC), `level`, `message` and fields of the "
          "event."},
         log.format, {"text", "json"});
  in.path({"file", "Path of a file to append to, in an existing folder. Empty: standard error."}, log.file);
  return log;
}

MembershipConfig readMembership(ConfigReader in) {
  MembershipConfig membership;
  in.integer({"lease_ms",
              "Silence after which a trainer counts as lost. Every call renews the lease, and a trainer that "
              "computes for longer renews it automatically; one that is stopped or unreachable does not."},
             membership.leaseMs, kLeaseMsMin, kMembershipMsMax);
  in.integer({"grace_ms",
              "Time for a trainer whose connection closed to reconnect; meanwhile another trainer may take "
              "its rank. 0: it is lost at once."},
             membership.graceMs, 0, kMembershipMsMax);
  return membership;
}

uint32_t defaultThreads() {
  return std::clamp<uint32_t>(std::thread::hardware_concurrency(), 1, kDefaultThreadsMax);
}

/// The policies that record every update, human-readable.
std::string recordingPolicies() {
  std::string able;
  for (const PolicyEntry& entry : kPolicyList) {
    if (entry.traits.recordsUpdates) able += (able.empty() ? "" : ", ") + std::string(entry.type);
  }
  return able;
}

/// A log needs policies that record every update.
void checkLogged(ConfigReader& in, const DaemonConfig& config) {
  if (config.durability.type != DurabilityConfig::Type::log) return;
  const std::string able = recordingPolicies();
  for (const GroupConfig& group : config.groups) {
    if (group.policy.plan.changesGradients) {
      in.fail("durability.type",
              "\"log\" replays gradients as they were pushed, so it cannot be combined with policy.clip or "
              "policy.delay_compensation; \"checkpoint\" supports both");
    }
    if (group.policy.traits.recordsUpdates) continue;
    in.fail("durability.type", "\"log\" supports the policies " + able + ", not " + group.policy.type +
                                   "; \"checkpoint\" works with any");
  }
}

/// A standby receives every update, as a log does.
void checkReplicated(ConfigReader& in, const DaemonConfig& config) {
  for (const GroupConfig& group : config.groups) {
    if (!group.policy.traits.recordsUpdates) {
      in.fail("engine", "a standby follows update by update, so it supports the policies " +
                            recordingPolicies() + ", not " + group.policy.type);
    }
    if (group.policy.plan.changesGradients) {
      in.fail("engine",
              "a standby gets gradients as they were pushed, so it cannot be combined with policy.clip or "
              "policy.delay_compensation");
    }
  }
  const bool disk = config.replication.wait == ReplicationConfig::Wait::standbyAndDisk;
  if (disk && config.durability.type != DurabilityConfig::Type::log) {
    in.fail("replication.wait",
            "\"standby_and_disk\" waits for the log on the disk, so it requires durability.type log, not " +
                std::string(durabilityName(config.durability.type)));
  }
}

/// Several daemons publish their parts of the same rounds, without asking each other.
void checkPublishedParts(ConfigReader& in, const DaemonConfig& config) {
  const PublishConfig& publish = *config.publish;
  constexpr uint64_t kKeepMin = 4;
  if (config.servesOnlyVersions()) {
    in.fail("publish.from", "\"" + std::string(publishFromName(publish.from)) +
                                "\" requires a single daemon: remove `daemons` and `index`");
    return;
  }
  for (size_t i = 0; i < config.groups.size(); i++) {
    const PolicyChoice& policy = config.groups[i].policy;
    if (policy.traits.rounds && !config.groups[i].fragment) continue;
    in.fail("publish",
            "with several daemons requires a policy with rounds of the whole model, such as sync: " +
                pathOf(config.groups, i, "policy") + " is " + policy.type +
                (policy.traits.rounds ? " with fragments" : ""));
  }
  if (config.engine) in.fail("publish", "with several daemons cannot be combined with `engine`");
  if (publish.everyUpdates == 0) {
    in.fail("publish.every_updates",
            "must be at least 1 with several daemons, which publish every round whose number is a multiple "
            "of it");
  }
  if (publish.everySeconds > 0) {
    in.fail(
        "publish.every_seconds",
        "requires a single daemon: the clocks of several do not name a moment; use publish.every_updates");
  }
  if (publish.keep < kKeepMin) {
    in.fail("publish.keep", fmt::format("must be at least {} with several daemons, whose newest versions "
                                        "differ for a moment",
                                        kKeepMin));
  }
}

/// Versions are published by one daemon and its standby, or by several daemons.
void checkPublished(ConfigReader& in, const DaemonConfig& config) {
  if (!config.publish) return;
  if (config.engine && config.servesOnlyVersions()) {
    in.fail("publish.from",
            "\"" + std::string(publishFromName(config.publish->from)) +
                "\" cannot be combined with `engine`: a daemon that only has versions has no standby");
  }
  if (config.daemons.several()) checkPublishedParts(in, config);
}

/// The limits admit the trainers, and the rounds work with their number.
void checkWorldSize(ConfigReader& in, const DaemonConfig& config) {
  if (!config.worldSize) return;
  if (config.worldSize->max > config.limits.connections) {
    in.fail("world_size", "must be at most limits.connections (" + std::to_string(config.limits.connections) +
                              "), not " + std::to_string(config.worldSize->max));
  }
  if (Status status = checkTrainersSuffice(config.groups, config.worldSize->max); !status.ok()) {
    in.fail("world_size", status.message());
  }
}

/// Each of several daemons receives a part of each gradient alone.
void checkPartitioned(ConfigReader& in, const DaemonConfig& config) {
  if (!config.daemons.several()) return;
  in.refuse("model",
            "requires a single daemon: where several serve a model, the initializer sends it (its values: "
            "psd-trainer --init)");
  for (size_t i = 0; i < config.groups.size(); i++) {
    const PolicyPlan& plan = config.groups[i].policy.plan;
    const std::string path = pathOf(config.groups, i, "policy");
    if (plan.rounds.unbounded) {
      in.fail("daemons",
              "each closes its rounds independently, and after one was away two trainers can wait for "
              "each other in the rounds of two daemons: give " +
                  path + ".round_timeout_ms, with on_timeout \"proceed\"");
    }
    const std::string& why = plan.needsWholeGradient;
    if (why.empty()) continue;
    in.fail("daemons", "each has a part of a gradient alone, and " + path + " needs the whole: " + why);
  }
  const bool forgets = config.durability.type == DurabilityConfig::Type::none && !config.engine;
  if (config.groups.front().fragment && forgets) {
    in.fail("durability.type",
            "must be \"log\" or \"checkpoint\" with fragments and several daemons: one that restarts "
            "without them would count its rounds from 0, and learners exchange its fragments alone until "
            "they are as far "
            "as the others");
  }
}

/// Keys of a daemon and the machine that it runs on.
void readMachine(ConfigReader& in, DaemonConfig& config) {
  config.listen = readListen(in);
  if (auto auth = in.optionalObject(
          {"auth", "Who may do what. Without it every client may do everything.", kLive | kOfDaemon})) {
    config.auth = readAuth(*auth);
  }
  if (auto tls = in.optionalObject({"tls",
                                    "Certificate of the daemon for addresses `tls://`, and which clients "
                                    "need one. Files are in PEM format.",
                                    kLive | kOfDaemon})) {
    config.tls = readTls(*tls);
  }
  in.boolean({"insecure", "Other machines may connect without authentication.", kLive | kOfDaemon},
             config.insecure);
  config.http =
      readHttp(in.object({"http", "The web page and the endpoints for programs, over HTTP.", kOfDaemon}));
  if (auto engine = in.optionalObject({"engine",
                                       "The register outside of psd through which a daemon and its standby "
                                       "agree. Without it the daemon has no standby.",
                                       kOfDaemon})) {
    config.engine = readEngine(*engine, config.insecure);
  }
  checkExposure(in, config);
  checkDistinct(in, config);
}

/// Keys of how the model is divided and served on the machine.
void readDivision(ConfigReader& in, DaemonConfig& config) {
  config.daemons = readDaemons(in);
  config.devices = readDevices(in);
  in.integer({"shards",
              "Parts into which the parameters are divided, balanced by bytes. At least the number of "
              "devices; a small model gets fewer. Default: 4, or as many as keep each at 64 MiB of weights, "
              "which bounds the time that a push waits for a shard."},
             config.shards, 1, kShardsMax);
  if (config.shards && *config.shards < config.devices.size()) {
    in.fail("shards", "must be at least the number of devices (" + std::to_string(config.devices.size()) +
                          "), not " + std::to_string(*config.shards));
  }
  config.threads = defaultThreads();
  in.integer({"threads",
              "Event-loop threads. A connection belongs to one of them; thousands of connections need no "
              "more threads. Default: the number of cores, at most 4.",
              kOfDaemon | Key::kNoDefault},
             config.threads, 1, kThreadsMax);
  in.integer({"spin_us",
              "Microseconds for which an event loop polls for the next message before it sleeps. With idle "
              "cores it makes small calls faster; with busy ones it takes their time. 0: it sleeps at once.",
              kOfDaemon},
             config.spin, 0, kSpinUsMax);
}

/// Keys of the model and its training.
void readTraining(ConfigReader& in, DaemonConfig& config) {
  config.groups = readGroups(in);
  config.tables = readTables(in);
  if (auto model = in.optionalObject(
          {"model", "The model, known from the start. Without it the initializer sends it."})) {
    config.model = readModel(*model);
  }
  config.worldSize = readWorldSize(in);
  config.codecs = readCodecs(in.object({"codecs", "How gradients and parameters travel in messages."}));
  if (const auto codec = config.codecs.push.choose(""); codec.ok()) {
    const Status fits = checkPushCodec(**codec, config.groups);
    if (!fits.ok()) in.fail("codecs.push.default", fits.message());
  }
  if (!config.groups.back().policy.local.deltas.empty() && config.codecs.pull.fallback != "none") {
    in.fail("codecs.pull.default", "cannot be combined with policy.deltas, by which pulls are differences");
  }
  config.membership = readMembership(in.object({"membership", "When a trainer counts as lost."}));
  in.boolean({"exit_when_done",
              "End once all `world_size` ranks (`world_size.min` of them) have been taken and no trainer is "
              "left. A lost trainer counts as left."},
             config.exitWhenDone);
}

/// Keys of what is saved, and their checks with those read before.
void readSaving(ConfigReader& in, DaemonConfig& config) {
  in.path({"save",
           "Path of a .safetensors file for the final model without rows of tables, written when the daemon "
           "ends; the daemon does "
           "not start where it cannot create a file. Empty: it is not saved.",
           kOfDaemon},
          config.save);
  config.durability =
      readDurability(in.object({"durability", "What of the model survives the daemon.", kOfDaemon}));
  checkLogged(in, config);
  if (in.describes() || config.engine) {
    config.replication = readReplication(
        in.object({"replication", "With `engine`: how a primary and its standby stay in sync.", kOfDaemon}));
  } else if (in.has("replication")) {
    in.fail("replication", "requires `engine`: without one a daemon has no standby");
  }
  if (auto publish = in.optionalObject(
          {"publish",
           "Versions of the weights for readers: one copy of all tensors at one moment, with a number that "
           "only rises. From training they are in `durability.path` or, without durability, in memory until "
           "the daemon ends; rows of embedding tables are not in them.",
           kOfDaemon})) {
    config.publish = readPublish(*publish);
  }
  if (config.engine && !config.servesOnlyVersions()) checkReplicated(in, config);
  checkPublished(in, config);
  if (config.servesOnlyVersions()) refuseKeysOfTraining(in, config.publish->from);
  checkPartitioned(in, config);
}

}  // namespace

DaemonConfig readKeys(ConfigReader& in) {
  DaemonConfig config;
  readMachine(in, config);
  readDivision(in, config);
  readTraining(in, config);
  readSaving(in, config);
  config.log = readLog(in.object({"log", "What is logged, and where.", kOfDaemon}));
  config.limits = readLimits(in.object({"limits", "The most that the daemon accepts and holds.", kOfDaemon}));
  checkWorldSize(in, config);
  return config;
}

}  // namespace psd
