#pragma once

#include <string>

#include <fmt/format.h>

#include "common/types/daemon_id.h"
#include "server/metrics/steady_clock.h"

namespace psd {

/// A daemon's number as people see it.
inline std::string hex(DaemonId id) { return fmt::format("{:016x}", id.value); }

/// Since a time on the steady clock; 0: there was none.
inline double secondsSince(uint64_t ms) {
  const uint64_t now = steadyMs();
  return ms == 0 || ms > now ? 0 : static_cast<double>(now - ms) / 1000;
}

}  // namespace psd
