#pragma once

#include "server/daemon/server.h"
#include "server/http/hooks.h"

namespace psd {

/// What the HTTP side may ask of this daemon, which outlives it, as `timer` does. Without `auth` all callers
/// may do everything, else what their token says.
HttpHooks httpHooksOf(Server& server, kj::Timer& timer);

}  // namespace psd
