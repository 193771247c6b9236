#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// What a process of a group calls to wait for the others: returns when each of them has called it as often,
/// or has ended.
using Together = std::function<void()>;

/// Forks `count` processes, each of which runs `work` with its number from 0 and ends with it; gives what
/// they returned, in that order, or what went wrong with the first one that failed. They die with the calling
/// process. Blocks. To be called while the process has one thread: a fork has no other.
Result<std::vector<std::string>> runInProcesses(
    uint32_t count,
    const std::function<Result<std::string>(uint32_t number, const Together& together)>& work);

}  // namespace psd
