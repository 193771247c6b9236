#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/auth/credentials.h"
#include "common/config/object_reader.h"
#include "common/os/address.h"

namespace psd {

/// `replication`: how a primary and its standby keep together. A value type.
struct ReplicationConfig {
  /// When a push is answered.
  enum class Wait : uint8_t {
    standby,         ///< once the standby has its records: nothing answered is lost when one daemon dies
    standbyAndDisk,  ///< once they are in the logs on both disks: nor when both die, and one disk with them
    none,            ///< at once: what the standby has not received yet may be lost
  };
  Wait wait = Wait::standby;
  bool waits() const { return wait != Wait::none; }
  uint64_t heartbeatMs = 50;           ///< between two signs of life
  uint64_t silenceMs = 300;            ///< a standby takes over after so long without one
  uint64_t aloneMs = 1'500;            ///< a primary goes on alone after so long without one of its standby
  uint64_t lagBytes = 64ull << 20;     ///< of records that a standby in sync has not applied yet
  uint64_t catchUpBytes = 1ull << 30;  ///< of records that a standby keeps while it receives the model
  /// Where other daemons reach this one; empty: where it listens.
  std::vector<Address> addresses;
  /// What this daemon shows another one. What is not given comes from the environment.
  CredentialFlags credentials;
};

/// As in the configuration: "standby", "standby_and_disk", "none".
std::string_view describe(ReplicationConfig::Wait wait);

/// Reads the object `replication`; problems go to the reader.
ReplicationConfig readReplication(ObjectReader in);

}  // namespace psd
