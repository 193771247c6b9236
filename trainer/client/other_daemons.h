#pragma once

#include <string>

#include "common/status/status.h"
#include "trainer/client/api/client.h"

namespace psd {

/// Checks that a token that was sent to `first` over TLS may be sent to the other daemons too, which `first`
/// named: options.servers.
Status checkToken(const ClientOptions& options, const std::string& first);

}  // namespace psd
