#pragma once

#include <string_view>

namespace psd {

/// Prefix of the exception that a stream throws when its peer refused this end by a TLS alert, like a daemon
/// that requires a client certificate.
inline constexpr std::string_view kTlsRefusal = "refused by the other end's TLS: ";

/// Whether an exception of the connection is such a refusal.
inline bool isTlsRefusal(std::string_view description) {
  return description.find(kTlsRefusal) != std::string_view::npos;
}

}  // namespace psd
