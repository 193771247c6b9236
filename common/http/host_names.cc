#include "common/http/host_names.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace psd {
namespace {

std::string inSmallLetters(std::string host) {
  for (char& c : host) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return host;
}

/// A Host header in lower case, without port and brackets; empty if it is malformed.
std::string hostOf(std::string_view header) {
  const bool bracketed = header.starts_with('[');
  const size_t end = std::min(header.find(bracketed ? ']' : ':'), header.size());
  std::string host(header.substr(bracketed, end - bracketed));
  std::string_view port = header.substr(std::min(end + bracketed, header.size()));
  if (!port.empty() && !port.starts_with(':')) return {};
  port = port.substr(port.empty() ? 0 : 1);
  if (!std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; })) return {};
  return inSmallLetters(std::move(host));
}

}  // namespace

HostNames::HostNames(const std::vector<Address>& listen) : hosts_{"localhost"} {
  for (const Address& address : listen) {
    if (address.kind == Address::Kind::tcp) hosts_.push_back(inSmallLetters(address.host));
  }
}

bool HostNames::knows(const kj::HttpHeaders& headers) const {
  KJ_IF_MAYBE (value, headers.get(kj::HttpHeaderId::HOST)) {
    const std::string host = hostOf({value->begin(), value->size()});
    return isIpAddress(host) || std::find(hosts_.begin(), hosts_.end(), host) != hosts_.end();
  }
  return false;
}

}  // namespace psd
