#pragma once

#include <cstdint>
#include <vector>

#include "common/config/object_reader.h"
#include "common/os/address.h"

namespace psd {

inline constexpr const char* kDefaultHttpAddress = "tcp://localhost:5580";

/// The page and the endpoints for programs, over HTTP. A value type.
struct HttpConfig {
  std::vector<Address> listen;  ///< empty: off
  uint32_t connections = 64;    ///< open at once
  uint64_t timeoutMs = 15'000;  ///< for a request to be complete, and for a peer to read what it is sent
};

HttpConfig readHttp(ObjectReader in);

}  // namespace psd
