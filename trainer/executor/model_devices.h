#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "trainer/executor/executor_config.h"
#include "trainer/model/execution.h"

namespace psd {

/// Says which device a request, as chooseDevice() reads it, is for; `note` becomes why "auto" is the CPU,
/// where there is something to say.
using DeviceChoice = std::function<Result<Device>(std::string_view request, std::string& note)>;

/// Where the module of a configuration, or each of its stages, is computed. "auto" is the CPU where weights
/// are live. The error has the JSON path. `note`: of the last "auto" for which there is one.
Result<ExecutionOptions> placeModel(const ExecutorConfig& config, const DeviceChoice& choose,
                                    std::string& note);

/// Builds the module on these devices of this machine. Where "auto" is a CUDA device that turns out to be
/// useless, all that say "auto" is on the CPU, and the log says why. The error has the JSON path.
Result<std::unique_ptr<ExecutionModel>> buildModel(const ExecutorConfig& config);

}  // namespace psd
