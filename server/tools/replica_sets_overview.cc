#include "server/tools/replica_sets_overview.h"

#include <algorithm>
#include <chrono>

#include <kj/async-io.h>

#include "server/client/admin_client.h"
#include "server/daemon/peer_book.h"
#include "server/status/daemons_table.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kRowTime{1'000};  // timeout per address
constexpr kj::Duration kRowsTime = 10 * kj::SECONDS;  // timeout for all

/// The addresses at which the daemons of one partition may be.
PeerBook::Peers placesOf(uint32_t partition, const DaemonCall& daemon, const Result<DaemonStatus>& status) {
  PeerBook::Peers peers{.partition = partition};
  const auto add = [&](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      const auto address = parseAddress(text);
      if (!address.ok() || std::ranges::find(peers.addresses, *address) != peers.addresses.end()) continue;
      peers.addresses.push_back(*address);
    }
  };
  add(daemon.servers);
  if (status.ok() && status->replicaSet) add(status->replicaSet->others);
  return peers;
}

}  // namespace

std::set<std::string> clearHostsOf(const std::vector<std::string>& servers) {
  std::set<std::string> hosts;
  for (const std::string& server : servers) {
    const auto address = parseAddress(server);
    const bool clear = address.ok() && address->kind == Address::Kind::tcp && !address->tls;
    if (clear) hosts.insert(address->host);
  }
  return hosts;
}

std::string replicaSetsOverview(const std::vector<std::string>& named, const std::vector<DaemonCall>& daemons,
                                const std::vector<Result<DaemonStatus>>& statuses) {
  const bool pairs =
      std::ranges::any_of(statuses, [](const auto& status) { return status.ok() && status->replicaSet; });
  if (!pairs) return "";
  std::vector<PeerBook::Peers> peers;
  for (uint32_t i = 0; i < daemons.size(); i++) {
    const bool known = daemons.size() == 1 && statuses[i].ok() && statuses[i]->partition;
    peers.push_back(placesOf(known ? statuses[i]->partition->index : i, daemons[i], statuses[i]));
  }
  const DaemonCall& first = daemons.front();
  const auto most = std::min(first.timeout, kRowTime);
  auto io = kj::setupAsyncIo();
  PeerBook book(
      first.credentials,
      [most](const Address& address, const Credentials& shown) {
        return fetchStatusJson(address, most, shown);
      },
      clearHostsOf(named));
  io.provider->getTimer()
      .timeoutAfter(kRowsTime, book.whenRefreshed(peers))
      .catch_([](kj::Exception&&) {})  // the rows of unreachable daemons say so
      .wait(io.waitScope);
  return daemonsTable({book.rows(peers)});
}

}  // namespace psd
