#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// A barrier between the processes: returns when each other process has called it as often or has ended.
using Barrier = std::function<void()>;

/// Forks `count` processes, each of which runs `work` with its number, from 0, and exits; returns the results
/// in that order, or the error of the first process that failed. The processes are killed when the calling
/// process ends. Blocks. Requires a single-threaded process, since a fork copies only the calling thread.
Result<std::vector<std::string>> runInProcesses(
    uint32_t count, const std::function<Result<std::string>(uint32_t number, const Barrier& together)>& work);

}  // namespace psd
