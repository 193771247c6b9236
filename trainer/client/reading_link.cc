#include "trainer/client/reading_link.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/os/random_id.h"
#include "common/text/quantity.h"
#include "common/text/text.h"

namespace psd {
namespace {

using std::chrono::milliseconds;

ClientOptions forReading(ClientOptions options) {
  options.transport = Transport::rpc;  // no memory is shared
  options.cudaDevice = -1;
  return options;
}

}  // namespace

Result<std::unique_ptr<ReadingLink>> ReadingLink::make(const ClientOptions& options) {
  if (options.servers.empty()) return Error{ErrorCode::invalidArgument, "no server address is given"};
  for (const std::string& server : options.servers) PSD_RETURN_IF_ERROR(parseAddress(server).status());
  PSD_ASSIGN_OR_RETURN(auto link, Link::make());
  return std::unique_ptr<ReadingLink>(new ReadingLink(forReading(options), std::move(link)));
}

ReadingLink::ReadingLink(ClientOptions options, std::unique_ptr<Link> link)
    : options_(std::move(options)),
      seed_(drawBits()),
      lock_([ended = interrupted_, keepWaiting = options_.keepWaiting] {
        return !*ended && (!keepWaiting || keepWaiting());
      }),
      link_(std::move(link)) {}

std::string ReadingLink::server() const {
  const ClientLock::Hold hold(lock_, ClientLock::Turn::any);
  return options_.servers[server_];
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

Status ReadingLink::reconnect(uint64_t broken, const Error& cause, Clock::time_point deadline) {
  const ClientLock::Alone alone(lock_);
  PSD_RETURN_IF_ERROR(alone.status());
  if (connection_ != broken) return {};
  const Clock::time_point start = Clock::now();
  tell(ClientEvent::What::broke, cause.message + "; reconnecting");
  link_->fail({ErrorCode::unavailable, cause.message});
  if (cause.code == ErrorCode::standby) server_ = (server_ + 1) % options_.servers.size();
  const Status back = connectBefore(deadline);
  if (back.ok()) {
    tell(ClientEvent::What::back,
         fmt::format("back after {}: reads of versions continue", durationText(Clock::now() - start)));
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
  Status last;
  const size_t servers = options_.servers.size(), first = server_;
  for (size_t i = 0; i < servers; i++) {
    server_ = (first + i) % servers;
    // One of several servers that does not answer must not delay the others for long, nor the end of a wait.
    const milliseconds share = remainingUntil(deadline) / static_cast<int64_t>(servers - i);
    last = connectTo(options_.servers[server_], std::clamp(share, milliseconds(1), kAttemptTimeout));
    if (last.ok() || !shouldReconnect(last.error())) return last;
  }
  server_ = first;
  return last;
}

Status ReadingLink::connectTo(const std::string& server, milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  PSD_ASSIGN_OR_RETURN(const Address address, parseAddress(server));
  PSD_ASSIGN_OR_RETURN(OwnFd fd, lock_.outside([&] { return psd::connectTo(address, timeout); }));
  PSD_ASSIGN_OR_RETURN(const DaemonIdentity identity,
                       link_->open(lock_, std::move(fd), address, options_, timeUntil(deadline)));
  connection_++;
  if (identity.movedTo.empty()) return {};
  return {ErrorCode::invalidArgument, fmt::format("{}: the model has moved to {}: read its versions there",
                                                  server, joined(identity.movedTo.front(), " or "))};
}

void ReadingLink::tell(ClientEvent::What what, const std::string& line) {
  if (!options_.onEvent) return;
  const ClientEvent event{what, line};
  lock_.callBack([&] { options_.onEvent(event); });
}

}  // namespace psd
