#include "common/os/address.h"

#include <charconv>

#include <arpa/inet.h>
#include <sys/un.h>

#include "common/text/text.h"

namespace psd {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kTls = "tls://";
constexpr std::string_view kUnix = "unix://";
constexpr std::string_view kMultipath = "?multipath";
constexpr size_t kHostBytesMax = 253;  // of a DNS name

Error badAddress(std::string_view text, std::string_view why) {
  return {ErrorCode::invalidArgument, "address '" + printable(text) + "': " + std::string(why) +
                                          "; write tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH"};
}

}  // namespace

std::string Address::toString() const {
  if (kind == Kind::unixSocket) return std::string(kUnix) + path;
  bool v6 = host.find(':') != std::string::npos;
  return std::string(tls ? kTls : kTcp) + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port) +
         std::string(multipath ? kMultipath : "");
}

bool isLocal(const Address& address) {
  if (address.kind == Address::Kind::unixSocket || address.host == "localhost") return true;
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, address.host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return inet_pton(AF_INET6, address.host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

Result<Address> parseAddress(std::string_view text) {
  Address address;
  if (text.find('\0') != std::string_view::npos) return badAddress(text, "it has a zero byte");
  if (text.starts_with(kUnix)) {
    address.kind = Address::Kind::unixSocket;
    address.path = text.substr(kUnix.size());
    if (!address.path.starts_with('/') || address.path.size() == 1) {
      return badAddress(text, "the path of a Unix socket is absolute");
    }
    if (address.path.size() >= sizeof(sockaddr_un{}.sun_path)) {
      return badAddress(text, "the path of a Unix socket has at most " +
                                  std::to_string(sizeof(sockaddr_un{}.sun_path) - 1) + " bytes");
    }
    return address;
  }
  address.tls = text.starts_with(kTls);
  if (!address.tls && !text.starts_with(kTcp)) return badAddress(text, "unknown scheme");
  std::string_view rest = text.substr(address.tls ? kTls.size() : kTcp.size());
  if (const size_t option = rest.find('?'); option != std::string_view::npos) {
    if (rest.substr(option) != kMultipath) return badAddress(text, "?multipath is the only option");
    address.multipath = true;
    rest = rest.substr(0, option);
  }
  std::string_view port;
  if (rest.starts_with('[')) {
    size_t close = rest.find(']');
    if (close == std::string_view::npos) return badAddress(text, "missing ']'");
    address.host = rest.substr(1, close - 1);
    port = rest.substr(close + 1);
  } else {
    size_t colon = rest.find(':');
    address.host = rest.substr(0, colon);
    port = colon == std::string_view::npos ? std::string_view() : rest.substr(colon);
    if (port.find(':', 1) != std::string_view::npos) {
      return badAddress(text, "an IPv6 address must be in [brackets]");
    }
  }
  if (address.host.empty()) return badAddress(text, "the host is missing");
  if (address.host.size() > kHostBytesMax) {
    return badAddress(text, "a host has at most " + std::to_string(kHostBytesMax) + " bytes");
  }
  address.port = kDefaultPort;
  if (!port.empty()) {
    if (port.front() != ':') return badAddress(text, "':' expected after the host");
    port.remove_prefix(1);
    auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    if (error != std::errc() || end != port.data() + port.size()) {
      return badAddress(text, "the port is a number from 0 to 65535");
    }
  }
  return address;
}

bool isIpAddress(const std::string& host) {
  in6_addr address{};  // large enough for either kind
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace psd
