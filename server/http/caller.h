#pragma once

#include <functional>
#include <string>

#include "common/http/http_peer.h"

namespace psd {

/// Role of an HTTP caller; each role includes those before it.
enum class HttpRole {
  stranger,  ///< sent a token that is unknown or has expired
  none,      ///< sent no token although one is required
  reader,
  admin,
};

/// The sender of a request. A value type.
struct HttpCaller {
  std::string authorization;  ///< Authorization header; empty: none
  HttpPeer peer;
};

/// A caller's role and name. A value type.
struct HttpAccess {
  HttpRole role = HttpRole::none;
  std::string caller;  ///< "token 'ops'"; empty: the connection has no identity
  std::string who;     ///< for the log: "token 'ops' at 10.0.0.7:4242 over HTTP"
  std::string why{};   ///< of a stranger: why the token is refused
};

/// Determines the access of a caller. Called on the control loop; must not block.
using HttpAccessOf = std::function<HttpAccess(const HttpCaller& caller)>;

}  // namespace psd
