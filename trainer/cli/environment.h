#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "common/cli/setting.h"
#include "common/types/ids.h"

namespace psd {

/// Returns the value of an environment variable, or null if it is not set. An empty value counts as not set.
using EnvironmentGetter = std::function<const char*(const char* name)>;

/// The flag if given, else the first variable that is set.
std::optional<Setting> findSetting(const char* flag, const std::optional<std::string>& flagValue,
                                   std::initializer_list<const char*> variables,
                                   const EnvironmentGetter& environment);

/// A trainer's rank among the others. A value type.
struct Placement {
  Rank rank;
  bool anyRank = false;         ///< the daemon assigns the rank
  uint32_t worldSize = 1;       ///< 0: the daemon's
  uint32_t localRank = 0;       ///< rank among the trainers of this machine, if known; else the rank
  uint32_t localWorldSize = 1;  ///< trainers on this machine, if known; else all trainers
};

inline constexpr uint64_t kWorldSizeMax = 1u << 20;

/// The flags, else RANK and WORLD_SIZE (torchrun), else SLURM_PROCID and SLURM_NTASKS; LOCAL_RANK and
/// LOCAL_WORLD_SIZE. The rank may be "auto", with or without a world size. Without any of them: a single
/// trainer. Pure.
Result<Placement> resolvePlacement(const std::optional<std::string>& rankFlag,
                                   const std::optional<std::string>& worldSizeFlag,
                                   const EnvironmentGetter& environment);

/// The flags, else PSD_SERVER (comma-separated), else tcp://MASTER_ADDR with psd's default port (torchrun's
/// MASTER_PORT is ignored), else that port on this machine. Every address is validated; errors name `flag`.
/// Pure.
Result<std::vector<std::string>> resolveServers(const std::vector<std::string>& flags,
                                                const EnvironmentGetter& environment,
                                                const char* flag = "--server");

}  // namespace psd
