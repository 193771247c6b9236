#pragma once

#include <chrono>
#include <string>

#include "common/os/address.h"

namespace psd {

/// The beginning of the answer to `GET path`, without TLS; empty if there is none. For a look at what listens
/// there. Blocks, for at most twice `timeout`.
std::string httpAnswer(const Address& address, const std::string& path, std::chrono::milliseconds timeout);

}  // namespace psd
