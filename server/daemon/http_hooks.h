#pragma once

#include "server/daemon/server.h"
#include "server/http/hooks.h"

namespace psd {

/// The hooks by which the HTTP side reads and controls this daemon. `server` and `timer` must outlive them.
/// Without `auth` every caller is an admin; else the token or certificate decides.
HttpHooks httpHooksOf(Server& server, kj::Timer& timer);

}  // namespace psd
