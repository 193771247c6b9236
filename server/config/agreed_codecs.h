#pragma once

#include <memory>
#include <string_view>

#include "common/codec/codec.h"
#include "server/config/daemon_config.h"

namespace psd {

/// The codecs of a trainer's pushes and pulls. A value type.
struct AgreedCodecs {
  std::shared_ptr<const Codec> push, pull;
};

/// The codecs of a trainer that requests these (a peer's texts; empty: the daemon's default). The error names
/// the one that is not allowed.
Result<AgreedCodecs> agreeOnCodecs(const DaemonConfig& config, std::string_view push, std::string_view pull);

}  // namespace psd
