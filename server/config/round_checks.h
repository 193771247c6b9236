#pragma once

#include <memory>
#include <span>

#include "server/config/daemon_config.h"
#include "server/store/backend.h"

namespace psd {

/// Whether rounds can be made with so many trainers. ErrorCode::invalidArgument when they are too few to
/// begin one, or so many that it would set more gradients against one another than one of the devices takes.
/// 0: it is not known yet. Pure.
Status checkRounds(const DaemonConfig& config, std::span<const std::shared_ptr<Backend>> devices,
                   uint32_t trainers);

}  // namespace psd
