#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/config/daemon_config.h"
#include "server/store/parameter_store.h"

namespace psd {

/// ErrorCode::overloaded if the model without rows, cut into shards on `devices` devices, exceeds
/// limits.model_bytes or limits.table_bytes.
Status checkLimits(const DaemonConfig& config, const ModelSpec& model, size_t devices);

/// Creates the store for the model as configured, and initializes it with `fill` unless that is null. On any
/// thread; blocks.
Result<std::unique_ptr<ParameterStore>> makeStore(const DaemonConfig& config, ModelSpec model,
                                                  const std::vector<std::shared_ptr<Backend>>& backends,
                                                  const std::function<Status(ParameterStore&)>& fill);

}  // namespace psd
