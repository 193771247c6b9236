#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/config/daemon_config.h"
#include "server/store/parameter_store.h"

namespace psd {

/// Whether makeStore() could make one, as far as the configuration and the model tell.
Status checkStore(const DaemonConfig& config, const ModelSpec& model);

/// Whether limits.model_bytes and limits.table_bytes have room for the model without rows, cut into shards on
/// `devices` devices. ErrorCode::overloaded.
Status checkLimits(const DaemonConfig& config, const ModelSpec& model, size_t devices);

/// A store for the model by the configuration, given its values by `fill`, where there is one. From any
/// thread; blocks.
Result<std::unique_ptr<ParameterStore>> makeStore(const DaemonConfig& config, ModelSpec model,
                                                  const std::vector<std::shared_ptr<Backend>>& backends,
                                                  const std::function<Status(ParameterStore&)>& fill);

}  // namespace psd
