#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/auth/credentials.h"
#include "common/config/config_reader.h"
#include "common/os/address.h"

namespace psd {

/// The `replication` object of the configuration. A value type.
struct ReplicationConfig {
  /// When a push is answered.
  enum class Wait : uint8_t {
    standby,         ///< once the standby has its records: survives the loss of one daemon
    standbyAndDisk,  ///< once they are in both disks' logs: survives the loss of both daemons and one disk
    none,            ///< immediately: what the standby has not received yet may be lost
  };
  Wait wait = Wait::standby;
  bool waits() const { return wait != Wait::none; }
  uint64_t heartbeatMs = 50;           ///< interval of heartbeats
  uint64_t silenceMs = 300;            ///< without a heartbeat until a standby takes over
  uint64_t aloneMs = 1'500;            ///< without a standby's heartbeat until the primary continues alone
  uint64_t lagBytes = 64ull << 20;     ///< limit of records that a standby in sync has not applied
  uint64_t catchUpBytes = 1ull << 30;  ///< limit of records queued while a standby receives the model
  /// Where other daemons reach this one; empty: where it listens.
  std::vector<Address> addresses;
  /// Credentials for other daemons. Missing ones come from the environment.
  CredentialFlags credentials;
};

/// As in the configuration: "standby", "standby_and_disk", "none".
std::string_view describe(ReplicationConfig::Wait wait);

/// Reads the object `replication`.
ReplicationConfig readReplication(ConfigReader in);

}  // namespace psd
