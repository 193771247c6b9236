#include "server/engine/etcd_options.h"

#include "common/text/text.h"

namespace psd {

std::string EtcdMember::authority() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string EtcdMember::toString() const { return (tls ? "https://" : "http://") + authority(); }

Result<EtcdMember> parseEtcdMember(std::string_view text) {
  constexpr std::string_view kHttp = "http://", kHttps = "https://";
  const Error bad{
      ErrorCode::invalidArgument,
      "'" + printable(text) + "' is not an etcd address; expected http://HOST:PORT or https://HOST:PORT"};
  EtcdMember member;
  member.tls = text.starts_with(kHttps);
  if (!member.tls && !text.starts_with(kHttp)) return bad;
  std::string_view rest = text.substr(member.tls ? kHttps.size() : kHttp.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  for (const char c : rest) {
    const bool mayBe = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view(".-_:[]").find(c) != std::string_view::npos;
    if (!mayBe) return bad;
  }
  // The rest has the syntax of psd's own addresses.
  const Result<Address> address = parseAddress("tcp://" + std::string(rest));
  if (!address.ok()) return bad;
  member.host = address->host;
  const size_t bracket = rest.rfind(']');
  const bool hasPort =
      rest.find(':', bracket == std::string_view::npos ? 0 : bracket) != std::string_view::npos;
  if (hasPort) member.port = address->port;
  if (member.port == 0) return bad;
  return member;
}

}  // namespace psd
