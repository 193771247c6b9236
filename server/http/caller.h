#pragma once

#include <functional>
#include <string>

namespace psd {

/// What a caller over HTTP may do; each role includes those before it.
enum class HttpRole { none, observer, admin };

/// What a request says of who sent it. A value type.
struct HttpCaller {
  std::string authorization;  ///< the header of that name; empty: there is none
};

/// Says what a caller may do. Called on the control loop; must not block.
using HttpRoleOf = std::function<HttpRole(const HttpCaller& caller)>;

}  // namespace psd
