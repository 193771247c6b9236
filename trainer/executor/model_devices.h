#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "trainer/executor/executor_config.h"
#include "trainer/executor/stages/execution.h"

namespace psd {

/// Resolves a device request (see chooseDevice()) to a device. `note` is set if there is a reason to report
/// why "auto" is the CPU.
using DeviceChoice = std::function<Result<Device>(std::string_view request, std::string& note)>;

/// The devices on which a configuration's module, or each of its stages, is computed. "auto" is the CPU if
/// weights are live. An error names the JSON path. `note`: of the last "auto" that has one.
Result<ExecutionOptions> placeModel(const ExecutorConfig& config, const DeviceChoice& choose,
                                    std::string& note);

/// Builds the module on these devices of this machine. If an "auto" resolves to a CUDA device that turns out
/// to be unusable, every "auto" falls back to the CPU, and the log says why. An error names the JSON path.
Result<std::unique_ptr<ExecutionModel>> buildModel(const ExecutorConfig& config);

}  // namespace psd
