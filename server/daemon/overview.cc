#include "server/daemon/overview.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "server/client/admin_client.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kAnswerTime{1'000};
constexpr auto kAskedFor = 2 * kj::SECONDS;

}  // namespace

std::unique_ptr<Overview> Overview::make(const Server& server, kj::Timer& timer) {
  const DaemonConfig& config = server.loaded().config;
  if (!config.daemons.several() && !config.engine) return nullptr;
  return std::unique_ptr<Overview>(
      new Overview(server, timer, readCredentials(config.replication.credentials, std::getenv)));
}

Overview::Overview(const Server& server, kj::Timer& timer, Result<Credentials> credentials)
    : server_(server),
      timer_(timer),
      book_(std::move(credentials), [](const Address& address, const Credentials& shown) {
        return fetchStatusJson(address, kAnswerTime, shown);
      }) {}

std::vector<PeerBook::Peers> Overview::peers() {
  const DaemonsConfig& daemons = server_.loaded().config.daemons;
  const ReplicaController* const group = server_.replicaSet();
  const std::vector<Address> own = server_.addresses();
  std::vector<PeerBook::Peers> peers;
  for (uint32_t i = 0; i < daemons.addresses.size(); i++) {
    if (i != daemons.index) peers.push_back({.partition = i, .addresses = daemons.addresses[i]});
  }
  if (!group) return peers;
  PeerBook::Peers pair{.partition = daemons.index, .ownReplicaSet = true, .here = group->status().daemon};
  const auto add = [&](const std::vector<Address>& some) {
    for (const Address& address : some) {
      const bool known = std::ranges::find(pair.addresses, address) != pair.addresses.end();
      if (!known && std::ranges::find(own, address) == own.end()) pair.addresses.push_back(address);
    }
  };
  // A lost replica is not in the cluster document any more, but is shown until another one replaces it.
  if (std::vector<Address> others = group->others(); !others.empty()) otherReplica_ = std::move(others);
  // First the addresses by which the daemons of other partitions know it.
  if (daemons.several()) add(daemons.addresses[daemons.index]);
  add(otherReplica_);
  peers.push_back(std::move(pair));
  return peers;
}

Address Overview::ownAddress() const {
  const DaemonsConfig& daemons = server_.loaded().config.daemons;
  const auto listed = daemons.several() ? daemons.addresses[daemons.index] : std::vector<Address>();
  const ReplicaController* const group = server_.replicaSet();
  return addressForOthers(listed, group ? group->addresses() : server_.addresses(),
                          group ? &otherReplica_ : nullptr);
}

DaemonRows Overview::with(const DaemonStatus& status, std::vector<DaemonRow> others) {
  DaemonRow here = rowOf(status, ownAddress());
  here.partition = server_.loaded().config.daemons.index;
  here.here = true;
  here.page.clear();
  DaemonRows all{std::move(others)};
  all.daemons.insert(std::ranges::upper_bound(all.daemons, placeOf(here), {}, placeOf), std::move(here));
  return all;
}

DaemonRows Overview::rows(const DaemonStatus& status) { return with(status, book_.rows(peers())); }

DaemonRows Overview::seen(const DaemonStatus& status) { return with(status, book_.seen()); }

kj::Promise<void> Overview::whenRefreshedOnce() {
  return timer_.timeoutAfter(kAskedFor, book_.whenRefreshedOnce(peers())).catch_([](kj::Exception&&) {});
}

kj::Promise<DaemonRows> Overview::refreshedRows() {
  return timer_.timeoutAfter(kAskedFor, book_.whenRefreshed(peers()))
      .catch_([](kj::Exception&&) {})  // the rows of unreachable daemons say so
      .then([this] { return rows(server_.status()); });
}

}  // namespace psd
