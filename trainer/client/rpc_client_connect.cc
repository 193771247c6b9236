// How an RpcClient comes to a daemon, and comes back to it.

#include <algorithm>
#include <thread>

#include "common/os/socket.h"
#include "trainer/client/backoff.h"

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kRetryFirst{20};
constexpr milliseconds kRetryMost{500};
constexpr milliseconds kLongConnect{1'000};
constexpr std::chrono::seconds kBetweenTold{60};
// Most that one attempt takes where there are others to make: a daemon that is there answers sooner, and who
// waits may be asked to stop.
constexpr milliseconds kAttemptTimeout{5'000};

milliseconds leftUntil(Clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(0));
}

/// Time left until `deadline`, at least 1 ms: for an attempt that is made in any case.
milliseconds soonUntil(Clock::time_point deadline) { return std::max(leftUntil(deadline), milliseconds(1)); }

std::string seconds(milliseconds time) {
  const int64_t tenths = (time.count() + 50) / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

/// isLost() of an attempt to come to a daemon, which may take too long.
bool isOutOfReach(const Error& error) { return isLost(error) || error.code == ErrorCode::deadlineExceeded; }

bool worthConnectingAgain(const Error& error) {
  return isOutOfReach(error) || error.code == ErrorCode::shuttingDown;
}

}  // namespace

Status RpcClient::connectOnce(const std::string& server, milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  PSD_ASSIGN_OR_RETURN(Address address, parseAddress(server));
  PSD_ASSIGN_OR_RETURN(OwnFd fd, connectTo(address, timeout));
  PSD_ASSIGN_OR_RETURN(serverVersion_, first().open(std::move(fd), server, options_, soonUntil(deadline)));
  links_.countChannel();
  server_ = server;
  return {};
}

Status RpcClient::attachOthers(milliseconds timeout) {
  const SessionTerms terms = first().look([](Channel& channel) { return channel.terms(); });
  uint32_t links = std::min(options_.connections, info_.shardCount);
  // Memory is shared with the first alone.
  if (info_.pullTransport != "rpc" || info_.pushTransport != "rpc") links = 1;
  timeout = timeout.count() == 0 ? options_.connectTimeout : std::min(timeout, kAttemptTimeout);
  for (uint32_t i = 1; i < links; i++) {
    PSD_ASSIGN_OR_RETURN(Link* const link, links_.make(i));
    if (Status status = attach(*link, terms, timeout); !status.ok()) {
      return {status.error().code, "connection " + std::to_string(i + 1) + " of " + std::to_string(links) +
                                       ": " + status.message()};
    }
  }
  links_.divide(links);
  info_.connections = links;
  return {};
}

Status RpcClient::attach(Link& link, const SessionTerms& terms, milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  PSD_ASSIGN_OR_RETURN(Address address, parseAddress(server_));
  PSD_ASSIGN_OR_RETURN(OwnFd fd, connectTo(address, timeout));
  PSD_RETURN_IF_ERROR(link.open(std::move(fd), server_, options_, soonUntil(deadline)));
  return link.call<Status>([&](Channel& channel, kj::Timer& timer) {
    return timer.timeoutAfter(soonUntil(deadline).count() * kj::MILLISECONDS, channel.attach(terms));
  });
}

Status RpcClient::connectToAny(milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  Status last;
  for (size_t i = 0, servers = options_.servers.size(); i < servers; i++) {
    // Where there are others, one that does not answer keeps nobody from them for long.
    milliseconds share = leftUntil(deadline) / static_cast<int64_t>(servers - i);
    if (servers > 1) share = std::min(share, kAttemptTimeout);
    last = connectOnce(options_.servers[i], std::max(share, milliseconds(1)));
    if (last.ok() || !worthConnectingAgain(last.error())) return last;
  }
  return last;
}

Status RpcClient::connect(milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const Clock::time_point longWait = Clock::now() + kLongConnect;
  for (Backoff backoff(kRetryFirst, kRetryMost, incarnation_);;) {
    Status status = connectToAny(soonUntil(deadline));
    if (status.ok() || !worthConnectingAgain(status.error())) return status;
    if (Clock::now() >= longWait) {
      tellWait("a psd daemon, " + seconds(timeout) + " at most: " + status.message());
    }
    if (leftUntil(deadline) == milliseconds(0)) {
      return {ErrorCode::unavailable, "no psd daemon answered within " + std::to_string(timeout.count()) +
                                          " ms: " + status.message()};
    }
    std::this_thread::sleep_for(std::min(backoff.next(), leftUntil(deadline)));
  }
}

bool RpcClient::mayRecover(const Error& error) const {
  return trainer_ && !gaveUp_ && !interrupted_ && options_.retryTimeout.count() > 0 && isLost(error);
}

Status RpcClient::recover(uint64_t broken, const Error& cause) {
  if (interrupted_) return interruptedError();
  if (!mayRecover(cause)) return cause;
  if (broken != links_.number()) return {};
  const Clock::time_point start = Clock::now();
  forgetSettledPushes();
  tell(ClientEvent::What::broke,
       cause.message + "; trying again for up to " + seconds(options_.retryTimeout));
  Status back = comeBack(cause);
  if (!back.ok()) {
    gaveUp_ = true;
    return back;
  }
  const size_t resent = resendPushes();
  const auto taken = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
  tell(ClientEvent::What::back,
       "back after " + seconds(taken) + ": " +
           (info_.broughtInitialValues ? "the daemon had no model, this trainer brought its newest parameters"
            : joined_.resumed          ? "the session goes on"
                                       : "a new session") +
           ", pushes sent again: " + std::to_string(resent));
  return {};
}

Status RpcClient::comeBack(const Error& cause) {
  const Clock::time_point deadline = Clock::now() + options_.retryTimeout;
  Backoff backoff(kRetryFirst, kRetryMost, incarnation_ + links_.number());
  const auto servers = static_cast<int64_t>(options_.servers.size());
  for (Error last = cause;;) {
    links_.fail(last);
    if (interrupted_) return interruptedError();
    Status status = connectToAny(std::min(soonUntil(deadline), kAttemptTimeout * servers));
    if (status.ok() && interrupted_)
      return interruptedError();  // interrupt() came before there was a connection to fail
    if (status.ok()) status = joinOnce(soonUntil(deadline));
    if (status.ok()) return {};
    last = status.error();
    if (!isOutOfReach(last)) return last;
    if (leftUntil(deadline) == milliseconds(0)) {
      return {ErrorCode::unavailable,
              cause.message + "; no way back within " + seconds(options_.retryTimeout) + ": " + last.message};
    }
    std::this_thread::sleep_for(std::min(backoff.next(), leftUntil(deadline)));
  }
}

size_t RpcClient::resendPushes() {
  size_t count = 0;
  for (const std::shared_ptr<PushCall>& push : pushes_) {
    if (push->settled() || !push->sent()) continue;
    push->forgetAnswer();
    count++;
  }
  sendDue();
  return count;
}

void RpcClient::tell(ClientEvent::What what, std::string line) const {
  if (options_.onEvent) options_.onEvent({what, std::move(line)});
}

void RpcClient::tellWait(const std::string& what) {
  const Clock::time_point now = Clock::now();
  if (now < nextTellWait_) return;
  nextTellWait_ = now + kBetweenTold;
  tell(ClientEvent::What::waits, "waiting for " + what);
}

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& options) {
  if (options.servers.empty()) return Error{ErrorCode::invalidArgument, "no server address is given"};
  for (const std::string& server : options.servers) PSD_RETURN_IF_ERROR(parseAddress(server).status());
  PSD_ASSIGN_OR_RETURN(auto first, Link::make());
  auto client = std::make_unique<RpcClient>(options, std::move(first));
  PSD_RETURN_IF_ERROR(client->connect(options.connectTimeout));
  return std::unique_ptr<Client>(std::move(client));
}

}  // namespace psd
