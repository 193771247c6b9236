// How an RpcClient comes to a daemon, and comes back to it.

#include <algorithm>
#include <thread>

#include "common/os/socket.h"
#include "trainer/client/backoff.h"
#include "trainer/client/calls.h"

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kRetryFirst{20};
constexpr milliseconds kRetryMost{500};
// Of one attempt to come back: a daemon that is there answers sooner, and who waits may be asked to stop.
constexpr milliseconds kAttemptTimeout{5'000};

milliseconds leftUntil(Clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(0));
}

std::string seconds(milliseconds time) {
  const int64_t tenths = (time.count() + 50) / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

/// The daemon is away or silent, or has given this trainer up. What it answered itself is none of these.
bool isLost(const Error& error) {
  return error.code == ErrorCode::unavailable || error.code == ErrorCode::sessionEnded;
}

/// The same of an attempt to come to it, which may take too long.
bool isOutOfReach(const Error& error) { return isLost(error) || error.code == ErrorCode::deadlineExceeded; }

bool worthConnectingAgain(const Error& error) {
  return isOutOfReach(error) || error.code == ErrorCode::shuttingDown;
}

}  // namespace

Status RpcClient::connectOnce(const std::string& server, milliseconds timeout) {
  PSD_ASSIGN_OR_RETURN(Address address, parseAddress(server));
  PSD_ASSIGN_OR_RETURN(OwnFd fd, connectTo(address, timeout));
  kj::Own<Channel> fresh;
  auto version = call<std::string>([&](kj::AsyncIoContext& io) {
    fresh = kj::heap<Channel>(io, std::move(fd), server, options_.transport);
    return io.provider->getTimer().timeoutAfter(timeout.count() * kj::MILLISECONDS, fresh->hello());
  });
  io_.runSync([&](kj::AsyncIoContext&) {
    if (version.ok()) {
      retired_ = kj::mv(channel_);
      channel_ = kj::mv(fresh);
    }
    fresh = nullptr;
  });
  PSD_RETURN_IF_ERROR(version);
  connection_++;
  serverVersion_ = *version;
  return {};
}

Status RpcClient::connectToAny(milliseconds timeout) {
  Status last;
  for (const std::string& server : options_.servers) {
    last = connectOnce(server, timeout);
    if (last.ok() || !worthConnectingAgain(last.error())) return last;
  }
  return last;
}

Status RpcClient::connect(milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  for (Backoff backoff(kRetryFirst, kRetryMost, incarnation_);;) {
    Status status = connectToAny(std::max(leftUntil(deadline), milliseconds(1)));
    if (status.ok() || !worthConnectingAgain(status.error())) return status;
    if (leftUntil(deadline) == milliseconds(0)) {
      return {ErrorCode::unavailable, "no psd daemon answered within " + std::to_string(timeout.count()) +
                                          " ms: " + status.message()};
    }
    std::this_thread::sleep_for(std::min(backoff.next(), leftUntil(deadline)));
  }
}

bool RpcClient::mayRecover(const Error& error) const {
  return trainer_ && !gaveUp_ && options_.retryTimeout.count() > 0 && isLost(error);
}

Status RpcClient::recover(uint64_t broken, const Error& cause) {
  if (!mayRecover(cause)) return cause;
  if (broken != connection_) return {};
  const Clock::time_point start = Clock::now();
  tell(false, cause.message + "; trying again for up to " + seconds(options_.retryTimeout));
  Status back = comeBack(cause);
  if (!back.ok()) {
    gaveUp_ = true;
    return back;
  }
  const size_t resent = resendPushes();
  const auto taken = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
  tell(true,
       "back after " + seconds(taken) + ": " +
           (info_.broughtInitialValues ? "the daemon had no model, this trainer brought its newest parameters"
            : joined_.resumed          ? "the session goes on"
                                       : "a new session") +
           ", pushes sent again: " + std::to_string(resent));
  return {};
}

Status RpcClient::comeBack(const Error& cause) {
  const Clock::time_point deadline = Clock::now() + options_.retryTimeout;
  Backoff backoff(kRetryFirst, kRetryMost, incarnation_ + connection_);
  for (Error last = cause;;) {
    endChannel(last);
    if (watcher_.shouldStop && watcher_.shouldStop()) return cause;
    const milliseconds left = std::max(leftUntil(deadline), milliseconds(1));
    Status status = connectToAny(std::min(left, kAttemptTimeout));
    if (status.ok()) status = joinOnce(std::max(leftUntil(deadline), milliseconds(1)));
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

void RpcClient::endChannel(const Error& why) {
  io_.runSync([&](kj::AsyncIoContext&) { return channel_->fail(why); });
}

size_t RpcClient::resendPushes() {
  size_t count = 0;
  for (const std::shared_ptr<PushCall>& push : pushes_) {
    if (push->settled()) continue;
    push->send();
    count++;
  }
  return count;
}

void RpcClient::tell(bool connected, std::string what) {
  if (watcher_.onEvent) watcher_.onEvent({connected, std::move(what)});
}

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& options) {
  if (options.servers.empty()) return Error{ErrorCode::invalidArgument, "no server address is given"};
  for (const std::string& server : options.servers) PSD_RETURN_IF_ERROR(parseAddress(server).status());
  auto client = std::make_unique<RpcClient>(options);
  PSD_RETURN_IF_ERROR(client->connect(options.connectTimeout));
  return std::unique_ptr<Client>(std::move(client));
}

}  // namespace psd
