#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/log/log.h"
#include "common/os/address.h"
#include "common/os/env.h"
#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "server/auth/auth_config.h"
#include "server/checkpoint/durability_config.h"
#include "server/config/codecs_config.h"
#include "server/config/daemons_config.h"
#include "server/config/device_choice.h"
#include "server/config/engine_config.h"
#include "server/config/http_config.h"
#include "server/config/parameter_groups.h"
#include "server/config/tables_config.h"
#include "server/config/tls_config.h"
#include "server/config/world_size.h"
#include "server/replica/replication_config.h"

namespace psd {

/// The model that a daemon holds from its start: either its tensors (the first trainer brings the
/// values) or a file with both.
struct ModelConfig {
  ModelSpec spec;    ///< with a file only the name, for people
  std::string file;  ///< path of a .safetensors file; empty: spec holds the tensors
};

/// What one daemon takes on at most. The defaults suit a few hundred trainers.
struct Limits {
  uint32_t connections = 4096;              ///< open at once
  uint64_t messageBytes = 8ull << 20;       ///< largest incoming message
  uint64_t sliceBytes = 4ull << 20;         ///< largest slice of values or gradient in one call
  uint64_t inFlightBytes = 1ull << 30;      ///< of incoming messages held, all connections together
  uint32_t calls = 1024;                    ///< of one connection: in progress, and answered but unread
  uint64_t stagedBytes = 1ull << 30;        ///< of gradients that are gathered before they are applied
  uint64_t snapshotBytes = 1ull << 30;      ///< of copies of shards that pulls are in the midst of
  uint64_t logPendingBytes = 256ull << 20;  ///< of updates that wait for the log's disk
  uint64_t outgoingBytes = 64ull << 20;     ///< of answers queued, or under way, for one connection
  uint64_t allOutgoingBytes = 1ull << 30;   ///< of answers queued, all connections together
  uint64_t pullTimeoutMs = 10'000;   ///< for a pull that has begun and asks for nothing while it holds a copy
  uint64_t readTimeoutMs = 30'000;   ///< for the rest of a message that has begun
  uint64_t loginTimeoutMs = 10'000;  ///< for a TLS handshake, and with `auth` until a peer has logged in
  uint64_t writeTimeoutMs = 30'000;  ///< for a peer that does not read what is queued for it
  uint64_t drainMs = 5'000;          ///< for what is in flight at shutdown
  uint64_t ringBytes = 64ull << 20;  ///< memory through which one trainer may push; 0: none
  uint64_t allRingsBytes = 1ull << 30;  ///< of that, all trainers together
  uint64_t modelBytes = 0;  ///< of a model's float32 weights, tensors and shards, of a trainer; 0: what fits
  uint64_t tableBytes = 16ull << 30;  ///< of all embedding tables: rows with optimizer state, index, filters
  uint64_t sessionsBytes = 16ull << 30;  ///< of what is known of each trainer's pushes to each shard
  uint64_t arrivingBytes = 16ull << 30;  ///< of what other daemons give of a model that moves here
};

/// When a trainer counts as gone.
struct MembershipConfig {
  uint64_t leaseMs = 10'000;  ///< after so long a silence
  uint64_t graceMs = 2'000;   ///< after its connection closed, unless it comes back
};

/// Everything that a daemon is told. Each field is the key of the same name in the configuration;
/// docs/configuration.md is the reference. A value type.
struct DaemonConfig {
  std::vector<Address> listen;  ///< at least one
  HttpConfig http;
  std::optional<AuthConfig> auth;      ///< none: who can connect may do everything
  std::optional<TlsConfig> tls;        ///< given where some address of `listen` is tls://
  bool insecure = false;               ///< other machines may connect without showing who they are
  std::optional<EngineConfig> engine;  ///< none: this daemon has no standby
  DaemonsConfig daemons;               ///< `daemons` and `index`
  std::vector<DeviceChoice> devices;   ///< at least one; shards go round them
  std::optional<uint32_t> shards;      ///< at least as many as devices; nothing: by the model's size
  uint32_t threads = 1;                ///< event loops
  std::chrono::microseconds spin{0};   ///< `spin_us`: they stay awake so long after each message
  std::vector<GroupConfig> groups;     ///< at least one: the last takes the tensors that no other does
  TablesConfig tables;
  std::optional<ModelConfig> model;    ///< none: the first trainer brings it
  std::optional<WorldSize> worldSize;  ///< none: what the first trainer says
  CodecsConfig codecs;                 ///< how gradients and parameters may travel
  MembershipConfig membership;
  bool shmWritable = false;   ///< same-host trainers may write the parameters they map
  bool exitWhenDone = false;  ///< once all trainers have joined and left
  std::string save;           ///< path for the final model; empty: it is not saved
  DurabilityConfig durability;
  ReplicationConfig replication;  ///< with an engine
  LogOptions log;
  Limits limits;

  /// Whether updates go to a log, on this machine's disk or another daemon's.
  bool recorded() const { return durability.type == DurabilityConfig::Type::log || engine.has_value(); }
};

/// A valid configuration and all its keys, defaults included, as JSON.
struct LoadedConfig {
  DaemonConfig config;
  nlohmann::ordered_json effective;
};

/// Checks a whole document and turns it into a configuration. Errors name the JSON path. The only
/// key that is passed over is "$schema", which editors use.
Result<LoadedConfig> readDaemonConfig(nlohmann::ordered_json document);

/// What the command line lays over the file.
struct ConfigOverrides {
  std::vector<std::string> listen;       ///< --listen, repeatable: together they replace `listen`
  std::optional<std::string> http;       ///< --http: replaces `http.listen`
  std::optional<std::string> device;     ///< --device: replaces `device` and `devices`
  std::optional<std::string> index;      ///< --index: replaces `index`
  bool insecure = false;                 ///< --insecure: sets `insecure`
  std::vector<std::string> assignments;  ///< --set KEY=VALUE, in order, after those above
};

/// Reads the file at `path` (empty: no file, all defaults), applies the overrides and checks the
/// whole. Errors name the file or the flag that is to blame.
Result<LoadedConfig> loadDaemonConfig(Env& env, const std::string& path,
                                      const ConfigOverrides& overrides = {});

/// What the CPU backend is to share: the weights, when same-host peers can come and the policy lets them
/// read what changes.
std::optional<SharedAccess> weightsToShare(const DaemonConfig& config);

}  // namespace psd
