#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace psd {

/// What a connection tells of who is at its other end. A value type.
struct HttpPeer {
  bool encrypted = false;                     ///< over TLS
  std::vector<std::string> certificateNames;  ///< of a client's certificate that was checked
  std::string where;                          ///< as text: "127.0.0.1:53211"
  std::optional<uid_t> user;                  ///< of a Unix socket: the user of its process
};

}  // namespace psd
