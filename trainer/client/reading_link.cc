#include "trainer/client/reading_link.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/os/random_id.h"
#include "common/text/quantity.h"
#include "common/text/text.h"
#include "trainer/client/other_daemons.h"

namespace psd {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMovesInARowMax = 8;       // from one daemon to the next
constexpr milliseconds kMoveAnswer{2'000};  // for a daemon that ends to say where the model is

ClientOptions forReading(ClientOptions options) {
  options.transport = Transport::rpc;  // no memory is shared
  options.cudaDevice = -1;
  return options;
}

}  // namespace

Result<std::unique_ptr<ReadingLink>> ReadingLink::make(const ClientOptions& options, bool isPart) {
  if (options.servers.empty()) return Error{ErrorCode::invalidArgument, "no server address is given"};
  for (const std::string& server : options.servers) PSD_RETURN_IF_ERROR(parseAddress(server).status());
  PSD_ASSIGN_OR_RETURN(auto link, Link::make());
  return std::unique_ptr<ReadingLink>(new ReadingLink(forReading(options), std::move(link), isPart));
}

ReadingLink::ReadingLink(ClientOptions options, std::unique_ptr<Link> link, bool isPart)
    : options_(std::move(options)),
      seed_(drawBits()),
      isPart_(isPart),
      lock_([ended = interrupted_, keepWaiting = options_.keepWaiting] {
        return !*ended && (!keepWaiting || keepWaiting());
      }),
      link_(std::move(link)),
      servers_(options_.servers) {}

std::string ReadingLink::server() const {
  const ClientLock::Hold hold(lock_, ClientLock::Turn::any);
  return servers_[server_];
}

std::vector<std::string> ReadingLink::servers() {
  const ClientLock::Hold hold(lock_, ClientLock::Turn::any);
  if (lock_.isExclusive()) return servers_;  // another thread connects, and follows the model
  // Where that is refused the next call says so.
  if (const DaemonAddresses moved = awaitMove({}); !moved.empty()) static_cast<void>(follow(moved));
  return servers_;
}

void ReadingLink::setServers(const std::vector<std::string>& servers) {
  const ClientLock::Hold hold(lock_, ClientLock::Turn::any);
  if (servers.empty() || lock_.isExclusive()) return;
  const std::string current = servers_[server_];  // also where only this link has learnt of it by a move
  servers_ = servers;
  if (std::ranges::find(servers_, current) == servers_.end()) servers_.insert(servers_.begin(), current);
  server_ = static_cast<size_t>(std::ranges::find(servers_, current) - servers_.begin());
}

DaemonAddresses ReadingLink::awaitMove(milliseconds time) const {
  return notification_ ? notification_->within(time) : DaemonAddresses();
}

Status ReadingLink::follow(const DaemonAddresses& to) {
  const std::string from = servers_[server_];
  const std::vector<std::string>& there = to.front();
  if (isPart_ || to.size() > 1 || there.empty()) {
    movedTo_ = to;
    return {ErrorCode::invalidArgument,
            fmt::format("{}: the model has moved to {}: read its versions there", from,
                        joined(to, " ", [](const auto& addresses) { return joined(addresses, ","); }))};
  }
  for (const std::string& server : there) PSD_RETURN_IF_ERROR(parseAddress(server).status());
  ClientOptions next = options_;
  next.servers = there;
  PSD_RETURN_IF_ERROR(checkToken(next, from));
  servers_ = addressesAfterMove(there, from, servers_);
  server_ = 0;
  return {};
}

DaemonAddresses ReadingLink::movedTo() const {
  const ClientLock::Hold hold(lock_, ClientLock::Turn::any);
  return movedTo_;
}

DaemonIdentity ReadingLink::identity() const {
  const ClientLock::Hold hold(lock_, ClientLock::Turn::any);
  return identity_;
}

size_t ReadingLink::place() const {
  const ClientLock::Hold hold(lock_, ClientLock::Turn::any);
  return server_;
}

bool ReadingLink::isGone() const {
  const ClientLock::Hold hold(lock_, ClientLock::Turn::any);
  return lostSince_ && Clock::now() - *lostSince_ >= options_.retryTimeout;
}

Status ReadingLink::pause(milliseconds time) {
  const ClientLock::Hold hold(lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  return lock_.pause(time) ? Status() : waitEndedError();
}

Status ReadingLink::connect() {
  const ClientLock::Hold hold(lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  const ConnectTimeout timeout(options_.connectTimeout);
  if (!timeout.retries) return connectToAny(Clock::now() + timeout.time);
  const Status connected = connectBefore(Clock::now() + timeout.time);
  if (connected.ok() || !shouldReconnect(connected.error())) return connected;
  return {ErrorCode::unavailable, fmt::format("no psd daemon answered within {}: {}",
                                              durationText(timeout.time), connected.message())};
}

Status ReadingLink::useNext(const Error& why, const Until& until) {
  const ClientLock::Hold hold(lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  if (servers_.size() == 1) return {};
  return reconnect(connection_, why, until ? *until : Clock::now() + options_.retryTimeout, true);
}

Status ReadingLink::reconnect(uint64_t broken, const Error& cause, Clock::time_point deadline, bool next) {
  const ClientLock::Alone alone(lock_);
  PSD_RETURN_IF_ERROR(alone.status());
  if (connection_ != broken) return {};
  const Clock::time_point start = Clock::now();
  const bool ends = cause.code == ErrorCode::shuttingDown;
  const DaemonAddresses moved =
      awaitMove(ends ? std::min(kMoveAnswer, remainingUntil(deadline)) : milliseconds(0));
  tell(ClientEvent::What::broke, cause.message + "; reconnecting");
  link_->fail({ErrorCode::unavailable, cause.message});
  if (!moved.empty()) {
    PSD_RETURN_IF_ERROR(follow(moved));
    notification_ = nullptr;
  } else if (next || cause.code == ErrorCode::standby) {
    server_ = (server_ + 1) % servers_.size();
  }
  const Status back = connectBefore(deadline);
  if (back.ok()) {
    tell(ClientEvent::What::back,
         fmt::format("back after {}: reads of versions continue{}", durationText(Clock::now() - start),
                     moved.empty() ? "" : " at " + servers_[server_] + ", where the model has moved"));
    return {};
  }
  if (!shouldReconnect(back.error())) return back;
  return {ErrorCode::unavailable, fmt::format("{}; could not reconnect within {}: {}", cause.message,
                                              durationText(Clock::now() - start), back.message())};
}

Status ReadingLink::connectBefore(Clock::time_point deadline) {
  for (Backoff backoff(seed_);;) {
    const Status connected = connectToAny(deadline);
    // A daemon with too many connections may accept one later.
    const bool later = !connected.ok() && (shouldReconnect(connected.error()) ||
                                           connected.error().code == ErrorCode::overloaded);
    if (!later || remainingUntil(deadline).count() == 0) return connected;
    if (!lock_.pause(std::min(backoff.next(), remainingUntil(deadline)))) return waitEndedError();
  }
}

Status ReadingLink::connectToAny(Clock::time_point deadline) {
  for (size_t moves = 0;; moves++) {
    const Status connected = connectToEach(deadline);
    if (!connected.ok() || identity_.movedTo.empty()) return connected;
    if (moves == kMovesInARowMax) {
      return {ErrorCode::unavailable, servers_[server_] + ": the model has moved too many times"};
    }
    PSD_RETURN_IF_ERROR(follow(identity_.movedTo));
  }
}

Status ReadingLink::connectToEach(Clock::time_point deadline) {
  Status last;
  const size_t servers = servers_.size(), first = server_;
  for (size_t i = 0; i < servers; i++) {
    server_ = (first + i) % servers;
    // One of several servers that does not answer must not delay the others for long, nor the end of a wait.
    const milliseconds share = remainingUntil(deadline) / static_cast<int64_t>(servers - i);
    last = connectTo(servers_[server_], std::clamp(share, milliseconds(1), kAttemptTimeout));
    if (last.ok() || !shouldReconnect(last.error())) return last;
  }
  server_ = first;
  return last;
}

Status ReadingLink::connectTo(std::string server, milliseconds timeout) {  // NOLINT: servers_ may change
  const Clock::time_point deadline = Clock::now() + timeout;
  PSD_ASSIGN_OR_RETURN(const Address address, parseAddress(server));
  PSD_ASSIGN_OR_RETURN(OwnFd fd, lock_.outside([&] { return psd::connectTo(address, timeout); }));
  PSD_ASSIGN_OR_RETURN(identity_, link_->open(lock_, std::move(fd), address, options_, timeUntil(deadline)));
  connection_++;
  notification_ = link_->look([](Channel& channel) { return channel.watchMove(); });
  return {};
}

void ReadingLink::tell(ClientEvent::What what, const std::string& line) {
  if (!options_.onEvent) return;
  const ClientEvent event{what, line};
  lock_.callBack([&] { options_.onEvent(event); });
}

}  // namespace psd
