#pragma once

#include <memory>
#include <string_view>

#include "common/codec/codec.h"
#include "server/config/daemon_config.h"

namespace psd {

/// How a trainer's values travel. A value type.
struct AgreedCodecs {
  std::shared_ptr<const Codec> push, pull;
};

/// The codecs of a trainer that asks for these (a peer's texts; empty: the daemon's choice). The error tells
/// which may not be.
Result<AgreedCodecs> agreeOnCodecs(const DaemonConfig& config, std::string_view push, std::string_view pull);

}  // namespace psd
