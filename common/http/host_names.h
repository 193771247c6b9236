#pragma once

#include <string>
#include <vector>

#include <kj/compat/http.h>

#include "common/os/address.h"

namespace psd {

/// By which names a program is reached over HTTP: localhost, the hosts of its addresses, and IP addresses.
/// Immutable.
class HostNames {
 public:
  explicit HostNames(const std::vector<Address>& listen);

  /// Whether Host is one of them. Where it is another, a browser may have been led here by another site's
  /// name for this machine.
  bool knows(const kj::HttpHeaders& headers) const;

 private:
  std::vector<std::string> hosts_;
};

}  // namespace psd
