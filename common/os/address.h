#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

inline constexpr uint16_t kDefaultPort = 5500;

/// A daemon's listen address or a trainer's target: "tcp://HOST:PORT" (HOST is a name, an IPv4 address, an
/// [IPv6] address or * for all interfaces; :PORT is optional), "tls://HOST:PORT" for TLS over TCP, or
/// "unix:///PATH". The suffix "?multipath" on the first two: one connection over several networks (MPTCP, RFC
/// 8684) if both machines support it, else TCP. A value type.
struct Address {
  enum class Kind { tcp, unixSocket };
  Kind kind = Kind::tcp;
  std::string host;        ///< tcp: without brackets
  uint16_t port = 0;       ///< tcp: 0 lets the system choose (listening only)
  std::string path;        ///< unix: absolute
  bool tls = false;        ///< tcp: TLS over it
  bool multipath = false;  ///< tcp: MPTCP if the system supports it

  /// The form accepted by parseAddress().
  std::string toString() const;
  bool operator==(const Address&) const = default;
};

/// Whether only this machine can reach it. Of names this is known for "localhost" only.
bool isLocal(const Address& address);
/// Whether it is a numeric IPv4 or IPv6 address, without brackets.
bool isIpAddress(const std::string& host);

/// The error quotes the text and lists all forms.
Result<Address> parseAddress(std::string_view text);

}  // namespace psd
