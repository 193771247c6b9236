#pragma once

#include <cstdint>

#include "common/config/config_reader.h"

namespace psd {

/// The most that one daemon accepts and holds. The defaults suit a few hundred trainers. A value type;
/// readLimits() documents each field.
struct Limits {
  uint32_t connections = 4096;
  uint64_t messageBytes = 8ull << 20;
  uint64_t sliceBytes = 4ull << 20;
  uint64_t inFlightBytes = 1ull << 30;
  uint32_t calls = 1024;
  uint64_t stagedBytes = 1ull << 30;
  uint64_t snapshotBytes = 1ull << 30;
  uint64_t logPendingBytes = 256ull << 20;
  uint64_t outgoingBytes = 64ull << 20;
  uint64_t allOutgoingBytes = 1ull << 30;
  uint64_t pullTimeoutMs = 10'000;
  uint64_t readTimeoutMs = 30'000;
  uint64_t loginTimeoutMs = 10'000;
  uint64_t writeTimeoutMs = 30'000;
  uint64_t drainMs = 5'000;
  uint64_t ringBytes = 64ull << 20;
  uint64_t allRingsBytes = 1ull << 30;
  uint64_t modelBytes = 0;
  uint64_t bufferBytes = 64ull << 20;
  uint64_t tableBytes = 16ull << 30;
  uint64_t sessionsBytes = 16ull << 30;
  uint64_t arrivingBytes = 16ull << 30;
  uint64_t versionBytes = 16ull << 30;
  uint32_t versionLeases = 1024;
};

Limits readLimits(ConfigReader in);

}  // namespace psd
