#pragma once

#include <memory>
#include <span>

#include "server/config/daemon_config.h"
#include "server/store/shard_storage.h"

namespace psd {

/// Whether the devices can do what the policies ask for with so many trainers. ErrorCode::invalidArgument
/// when a round would set more gradients against one another than one of them takes. Pure.
Status checkComparedGradients(const DaemonConfig& config, std::span<const std::shared_ptr<Backend>> devices,
                              uint32_t trainers);

}  // namespace psd
