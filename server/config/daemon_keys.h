#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/config_reader.h"
#include "common/log/log.h"
#include "common/os/address.h"
#include "server/auth/auth_config.h"
#include "server/checkpoint/durability_config.h"
#include "server/config/codecs_config.h"
#include "server/config/daemons_config.h"
#include "server/config/device_choice.h"
#include "server/config/engine_config.h"
#include "server/config/http_config.h"
#include "server/config/limits_config.h"
#include "server/config/model_config.h"
#include "server/config/parameter_groups.h"
#include "server/config/tables_config.h"
#include "server/config/tls_config.h"
#include "server/config/world_size.h"
#include "server/publish/publish_config.h"
#include "server/replica/replication_config.h"

namespace psd {

/// When a trainer counts as lost. A value type.
struct MembershipConfig {
  uint64_t leaseMs = 10'000;
  uint64_t graceMs = 2'000;
};

/// The configuration of a daemon. Each field is the key of the same name; docs/reference/configuration.md is
/// the reference. A value type.
struct DaemonConfig {
  std::vector<Address> listen;  ///< at least one
  HttpConfig http;
  std::optional<AuthConfig> auth;  ///< none: every client may do everything
  std::optional<TlsConfig> tls;    ///< present where an address of `listen` is tls://
  bool insecure = false;
  std::optional<EngineConfig> engine;  ///< none: this daemon has no standby
  DaemonsConfig daemons;               ///< `daemons` and `index`
  std::vector<DeviceChoice> devices;   ///< at least one; shards are placed on them in turn
  std::optional<uint32_t> shards;      ///< at least as many as devices; nothing: by the model's size
  uint32_t threads = 1;                ///< event loops
  std::chrono::microseconds spin{0};   ///< `spin_us`
  std::vector<GroupConfig> groups;     ///< at least one: the last has the tensors of no other
  TablesConfig tables;
  std::optional<ModelConfig> model;    ///< none: the initializer sends it
  std::optional<WorldSize> worldSize;  ///< none: that of the first trainer
  CodecsConfig codecs;
  MembershipConfig membership;
  bool exitWhenDone = false;
  std::string save;  ///< empty: the final model is not saved
  DurabilityConfig durability;
  std::optional<PublishConfig> publish;  ///< none: no versions are published
  ReplicationConfig replication;         ///< with an engine
  LogOptions log;
  Limits limits;

  /// Whether this daemon has no model: its versions come from publishers or from another daemon.
  bool servesOnlyVersions() const { return publish && publish->from != PublishConfig::From::training; }
  /// Whether updates are recorded, in a log on this machine's disk or at a standby.
  bool recorded() const { return durability.type == DurabilityConfig::Type::log || engine.has_value(); }
};

/// Declares and reads all keys. Used by readDaemonConfig() and by configSchema(), for which `in` describes.
DaemonConfig readKeys(ConfigReader& in);

}  // namespace psd
