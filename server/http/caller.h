#pragma once

#include <functional>
#include <string>

#include "common/http/http_peer.h"

namespace psd {

/// What a caller over HTTP may do; each role includes those before it.
enum class HttpRole {
  stranger,  ///< shows a token that nobody has
  none,      ///< shows no token, where one is needed
  reader,
  admin,
};

/// Who sent a request. A value type.
struct HttpCaller {
  std::string authorization;  ///< the header of that name; empty: there is none
  HttpPeer peer;
};

/// A caller's role and name. A value type.
struct HttpAccess {
  HttpRole role = HttpRole::none;
  std::string who;  ///< for the log: "token 'ops' at 10.0.0.7:4242 over HTTP"
};

/// Says what a caller may do. Called on the control loop; must not block.
using HttpAccessOf = std::function<HttpAccess(const HttpCaller& caller)>;

}  // namespace psd
