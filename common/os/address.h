#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

inline constexpr uint16_t kDefaultPort = 5500;

/// Where a daemon listens or a trainer connects: "tcp://HOST:PORT" (HOST a name, an IPv4 address, an
/// [IPv6] address or * for all interfaces; without :PORT the default), "tls://HOST:PORT" for TLS over TCP, or
/// "unix:///PATH". "?multipath" behind either of the first two: one connection over several networks
/// (MPTCP, RFC 8684) where both machines have that, else TCP. A value type.
struct Address {
  enum class Kind { tcp, unixSocket };
  Kind kind = Kind::tcp;
  std::string host;        ///< tcp: without brackets
  uint16_t port = 0;       ///< tcp: 0 lets the system choose (listening only)
  std::string path;        ///< unix: absolute
  bool tls = false;        ///< tcp: with TLS on it
  bool multipath = false;  ///< tcp: MPTCP where the system has it

  /// The form that parseAddress() reads.
  std::string toString() const;
  bool operator==(const Address&) const = default;
};

/// Whether only this machine can come to it. Of names that is known of "localhost" alone.
bool isLocal(const Address& address);
/// Whether it is an IPv4 or IPv6 address in figures, without brackets.
bool isIpAddress(const std::string& host);

/// The error quotes the text and shows all forms.
Result<Address> parseAddress(std::string_view text);

}  // namespace psd
