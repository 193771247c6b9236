#pragma once

#include <string>
#include <vector>

namespace psd {

/// What a connection tells of who is at its other end. A value type.
struct HttpPeer {
  bool encrypted = false;                     ///< over TLS
  std::vector<std::string> certificateNames;  ///< of a client's certificate that was checked
};

}  // namespace psd
