#pragma once

#include <string>
#include <vector>

#include <kj/compat/http.h>

#include "common/os/address.h"

namespace psd {

/// The valid host names of a program over HTTP: localhost, the hosts of its addresses, and all IP addresses.
/// Immutable.
class HostNames {
 public:
  explicit HostNames(const std::vector<Address>& listen);

  /// Whether the Host header is valid. Otherwise a browser may have been directed here by another site's name
  /// for this machine (DNS rebinding).
  bool knows(const kj::HttpHeaders& headers) const;

 private:
  std::vector<std::string> hosts_;
};

}  // namespace psd
