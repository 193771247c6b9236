#pragma once

#include <string_view>

namespace psd {

/// How the exception begins that a stream throws when its peer has refused this end by an alert of TLS, as a
/// daemon does a client without a certificate that it wants.
inline constexpr std::string_view kTlsRefusal = "refused by the other end's TLS: ";

/// Whether an exception of the connection says so.
inline bool isTlsRefusal(std::string_view description) {
  return description.find(kTlsRefusal) != std::string_view::npos;
}

}  // namespace psd
