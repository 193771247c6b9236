#pragma once

#include <cstdint>
#include <vector>

#include "common/config/config_reader.h"
#include "common/os/address.h"

namespace psd {

inline constexpr const char* kDefaultHttpAddress = "tcp://localhost:5580";

/// The web page and the endpoints for programs, over HTTP. A value type.
struct HttpConfig {
  std::vector<Address> listen;  ///< empty: off
  uint32_t connections = 64;
  uint64_t timeoutMs = 15'000;
};

HttpConfig readHttp(ConfigReader in);

}  // namespace psd
