#include "trainer/client/lease_keeper.h"

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

namespace psd {
namespace {

constexpr std::chrono::seconds kRetry{1}, kEnd{2};

}  // namespace

Status GrantedLease::checkRenewed(const Result<PublishedVersion>& answer, const std::string& server) const {
  if (!answer.ok()) return answer.status();
  if (history == 0 || answer->history == history) return {};
  return {ErrorCode::notReady,
          fmt::format("{}: the daemon has lost version {}: it has started another history", server,
                      lease.number)};
}

Result<std::unique_ptr<LeaseKeeper>> LeaseKeeper::make(ClientOptions options,
                                                       std::function<std::vector<std::string>()> servers,
                                                       bool isPart) {
  options.keepWaiting = nullptr;  // only the end of this object ends its waits
  options.onEvent = nullptr;
  std::unique_ptr<LeaseKeeper> keeper(new LeaseKeeper(std::move(options), std::move(servers), isPart));
  try {
    keeper->thread_ = std::thread([keeper = keeper.get()] { keeper->run(); });
  } catch (const std::system_error& error) {
    return Error{ErrorCode::overloaded, std::string("no thread for the renewal of leases: ") + error.what()};
  }
  return keeper;
}

LeaseKeeper::~LeaseKeeper() {
  {
    const std::lock_guard hold(mutex_);
    stops_ = true;
    for (const auto& [server, link] : links_) link->interrupt();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status LeaseKeeper::keep(const GrantedLease& granted) { return keep(granted, dueAfter(granted.lease), {}); }

Status LeaseKeeper::takeOver(const HandedLease& handed, const std::string& server) {
  return keep({handed.lease, 0, server}, Clock::now(), handed.lost);
}

Status LeaseKeeper::keep(const GrantedLease& granted, Clock::time_point due, const Status& lost) {
  ClientOptions options = options_;
  options.servers = serversFrom(granted.server);
  const std::lock_guard hold(mutex_);
  if (!links_.contains(granted.server)) {
    PSD_ASSIGN_OR_RETURN(auto link, ReadingLink::make(options, isPart_));
    links_[granted.server] = std::move(link);
  }
  kept_[granted.lease.id] = {granted, due, lost};
  changed_.notify_all();
  return {};
}

std::vector<std::string> LeaseKeeper::serversFrom(const std::string& server) const {
  std::vector<std::string> servers = servers_();
  const auto first = std::ranges::find(servers, server);
  if (first != servers.end()) std::rotate(servers.begin(), first, servers.end());
  return servers;
}

ReadingLink& LeaseKeeper::linkOf(const GrantedLease& granted) {
  const std::lock_guard hold(mutex_);
  return *links_.at(granted.server);
}

Status LeaseKeeper::end(const GrantedLease& granted) {
  const Status held = renew(granted, kEnd).status();
  static_cast<void>(linkOf(granted).callOnce<Status>([&](DaemonConnection& connection, kj::Timer&) {
    return releaseVersion(connection, granted.lease.id);
  }));
  if (!held.ok() && held.error().code != ErrorCode::notReady) return {};
  return held;
}

std::optional<LeaseKeeper::Kept> LeaseKeeper::take(uint64_t lease) {
  const std::lock_guard hold(mutex_);
  const auto found = kept_.find(lease);
  if (found == kept_.end()) return {};
  const Kept kept = std::move(found->second);
  kept_.erase(found);
  return kept;
}

Result<GrantedLease> LeaseKeeper::forget(uint64_t lease) {
  const auto kept = take(lease);
  if (!kept) return Error{ErrorCode::invalidArgument, "there is no such lease"};
  PSD_RETURN_IF_ERROR(kept->lost);
  return kept->granted;
}

std::optional<HandedLease> LeaseKeeper::handOver(uint64_t lease) {
  const auto kept = take(lease);
  if (!kept) return {};
  return HandedLease{kept->granted.lease, kept->lost};
}

std::vector<uint64_t> LeaseKeeper::leases() const {
  const std::lock_guard hold(mutex_);
  std::vector<uint64_t> leases;
  for (const auto& [id, kept] : kept_) leases.push_back(id);
  return leases;
}

std::optional<LeaseKeeper::Kept> LeaseKeeper::next() const {
  std::optional<Kept> next;
  for (const auto& [id, kept] : kept_) {
    if (kept.lost.ok() && (!next || kept.due < next->due)) next = kept;
  }
  return next;
}

void LeaseKeeper::run() {
  pthread_setname_np(pthread_self(), "psd-leases");
  std::unique_lock lock(mutex_);
  while (!stops_) {
    const auto first = next();
    const auto now = Clock::now();
    if (!first || first->due > now) {
      // Not wait(), for which gcc 12 emits a symbol that libstdc++ 11 lacks.
      changed_.wait_until(lock, first ? first->due : now + VersionReader::kLeaseMax);
      continue;
    }
    lock.unlock();
    const Result<uint64_t> renewed = renew(first->granted, first->granted.lease.time);
    const bool hasMoved = !linkOf(first->granted).movedTo().empty();  // until handOverPins() of its reader
    lock.lock();
    const auto found = kept_.find(first->granted.lease.id);
    if (found == kept_.end()) {  // forgotten meanwhile, and perhaps renewed after its release
      lock.unlock();
      static_cast<void>(
          linkOf(first->granted).callOnce<Status>([&](DaemonConnection& connection, kj::Timer&) {
            return releaseVersion(connection, first->granted.lease.id);
          }));
      lock.lock();
    } else if (renewed.ok()) {
      found->second.granted.history = *renewed;
      found->second.due = dueAfter(first->granted.lease);
    } else if (!hasMoved &&
               (renewed.error().code == ErrorCode::notReady || !isRetryable(renewed.error().code))) {
      found->second.lost = renewed.status();
    } else {
      found->second.due = Clock::now() + kRetry;
    }
  }
}

Result<uint64_t> LeaseKeeper::renew(const GrantedLease& granted, std::chrono::milliseconds timeout) {
  const VersionLease& lease = granted.lease;
  ReadingLink& link = linkOf(granted);
  link.setServers(serversFrom(granted.server));  // the model may have moved
  const auto answer = link.call<Result<PublishedVersion>>(
      ReadingLink::Clock::now() + timeout,
      [&lease](DaemonConnection& connection, kj::Timer&) { return leaseVersion(connection, lease); });
  PSD_RETURN_IF_ERROR(granted.checkRenewed(answer, link.server()));
  return answer->history;
}

}  // namespace psd
