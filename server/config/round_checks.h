#pragma once

#include <memory>
#include <span>

#include "server/config/daemon_config.h"
#include "server/store/backend.h"

namespace psd {

/// Whether rounds work with this number of trainers; 0: it is not known yet. ErrorCode::invalidArgument when
/// they are too few to start one, or when a round would compare more gradients than one of the devices
/// supports. Pure.
Status checkRounds(const DaemonConfig& config, std::span<const std::shared_ptr<Backend>> devices,
                   uint32_t trainers);

}  // namespace psd
