#pragma once

#include "server/daemon/server.h"
#include "server/http/hooks.h"

namespace psd {

/// What the HTTP side may ask of this daemon, which outlives it. All callers are of this machine, and may do
/// everything.
HttpHooks httpHooksOf(Server& server);

}  // namespace psd
