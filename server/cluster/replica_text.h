#pragma once

#include <string>

#include <fmt/format.h>

#include "common/types/daemon_id.h"
#include "server/metrics/steady_clock.h"

namespace psd {

/// A daemon's number, human-readable.
inline std::string hex(DaemonId id) { return fmt::format("{:016x}", id.value); }

/// Seconds since `ms` on the steady clock; 0 if `ms` is 0.
inline double secondsSince(uint64_t ms) {
  const uint64_t now = steadyMs();
  return ms == 0 || ms > now ? 0 : static_cast<double>(now - ms) / 1000;
}

}  // namespace psd
