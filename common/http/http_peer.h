#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace psd {

/// What is known about the peer of a connection. A value type.
struct HttpPeer {
  bool encrypted = false;                     ///< over TLS
  std::vector<std::string> certificateNames;  ///< of a verified client certificate
  std::string where;                          ///< human-readable: "127.0.0.1:53211"
  std::optional<uid_t> user;                  ///< of a Unix socket: the user of the peer process
};

}  // namespace psd
