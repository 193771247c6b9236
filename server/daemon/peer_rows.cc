#include "server/daemon/peer_rows.h"

#include <algorithm>

#include <arpa/inet.h>

namespace psd {
namespace {

/// Whether `host` stands for all interfaces.
bool isAnyHost(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return v4.s_addr == INADDR_ANY;
  return host == "*" || (inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6));
}

bool isWeb(const std::string& page) { return page.starts_with("http://") || page.starts_with("https://"); }

/// Parses "http://HOST:PORT/" as an address.
Result<Address> addressOf(const std::string& page) {
  const std::string rest = page.substr(page.find("://"));
  return parseAddress("tcp" + rest.substr(0, rest.rfind('/')));
}

/// A host as it is written in a URL.
std::string inUrl(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

}  // namespace

DaemonRow rowOf(const DaemonStatus& status, const Address& address) {
  DaemonRow row;
  row.partition = status.partition ? status.partition->index : 0;
  row.address = address.toString();
  row.page = pageFor(status.pages, address);
  row.polled = row.answers = true;
  row.state = status.state;
  row.role = status.replicaSet ? status.replicaSet->role : "primary";
  if (status.replicaSet) {
    row.daemon = status.replicaSet->daemon;
    row.term = status.replicaSet->term;
    row.waits = status.replicaSet->waits;
    row.standbyInSync = status.replicaSet->role == "primary" && status.replicaSet->inSync();
    row.lagBytes = status.replicaSet->lagBytes;
  }
  row.trainers = status.trainers.size();
  row.residentBytes = status.residentBytes;
  row.gradientsPerSecond = status.gradientsPerSecond;
  return row;
}

Address addressForOthers(const std::vector<Address>& listed, const std::vector<Address>& reached,
                         const std::vector<Address>* others) {
  if (!others && !listed.empty()) return listed.front();
  const auto isIn = [](const std::vector<Address>& all, const Address& address) {
    return std::ranges::find(all, address) != all.end();
  };
  for (const Address& address : listed) {
    if (isIn(reached, address)) return address;
  }
  // One host has several spellings (name, IPv4, IPv6), so addresses with equal ports may be one.
  std::vector<Address> may;
  for (const Address& address : listed) {
    const bool ours = std::ranges::any_of(reached, [&](const Address& own) {
      return address.kind == Address::Kind::tcp && own.kind == address.kind && own.port == address.port;
    });
    if (ours && !isIn(*others, address)) may.push_back(address);
  }
  return may.size() == 1 ? may.front() : reached.front();
}

std::string pageFor(const std::vector<std::string>& pages, const Address& address) {
  std::string own;  // only for browsers on the daemon's machine
  for (const std::string& page : pages) {
    if (!isWeb(page)) continue;
    const auto place = addressOf(page);
    if (!place.ok()) continue;
    if (isLocal(*place)) {
      if (own.empty()) own = page;
      continue;
    }
    if (!isAnyHost(place->host)) return page;
    if (address.kind != Address::Kind::tcp) continue;
    const std::string scheme = page.substr(0, page.find("://") + 3);
    return scheme + inUrl(address.host) + ":" + std::to_string(place->port) + "/";
  }
  return isLocal(address) ? own : "";
}

}  // namespace psd
