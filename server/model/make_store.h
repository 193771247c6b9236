#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/config/daemon_config.h"
#include "server/store/parameter_store.h"

namespace psd {

/// Whether makeStore() could make one, as far as the configuration and the model tell.
Status checkStore(const DaemonConfig& config, const ModelSpec& model);

/// A store for the model by the configuration, given its values by `fill`, where there is one. From any
/// thread; blocks.
Result<std::unique_ptr<ParameterStore>> makeStore(const DaemonConfig& config, ModelSpec model,
                                                  const std::vector<std::shared_ptr<Backend>>& backends,
                                                  const std::function<Status(ParameterStore&)>& fill);

}  // namespace psd
