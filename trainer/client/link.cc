#include "trainer/client/link.h"

#include <algorithm>
#include <stdexcept>

#include "common/tls/connect.h"

namespace psd {
namespace {

constexpr kj::Duration kGoodbyeAtClose = 1 * kj::SECONDS;

/// Calls turn every failure into a result, so there is nothing left to report.
class NoFailures final : public kj::TaskSet::ErrorHandler {
 public:
  void taskFailed(kj::Exception&&) override {}
} noFailures;

}  // namespace

Result<std::unique_ptr<Link>> Link::make() {
  try {
    return std::unique_ptr<Link>(new Link());
  } catch (const std::runtime_error& error) {
    return Error{ErrorCode::overloaded, std::string("no thread for input and output: ") + error.what()};
  }
}

Link::Link() {
  io_.runSync([this](kj::AsyncIoContext&) {
    tasks_ = kj::heap<kj::TaskSet>(noFailures);
    goodbyes_ = kj::heap<kj::TaskSet>(noFailures);
  });
}

void Link::close() {
  io_.runSync([this](kj::AsyncIoContext& io) -> kj::Promise<void> {
    if (goodbyes_.get() == nullptr) return kj::READY_NOW;  // closed before
    return io.provider->getTimer()
        .timeoutAfter(kGoodbyeAtClose, goodbyes_->onEmpty())
        .catch_([](kj::Exception&&) {});  // the daemon does not answer
  });
  io_.runSync([this](kj::AsyncIoContext&) {
    tasks_ = nullptr;  // abandoned calls
    goodbyes_ = nullptr;
    channel_ = nullptr;
    retired_ = nullptr;
  });
}

Result<DaemonIdentity> Link::open(ClientLock& lock, OwnFd fd, const Address& address,
                                  const ClientOptions& options, std::chrono::milliseconds timeout) {
  const std::string server = address.toString();
  kj::Own<Channel> fresh;
  const auto identity = await<Result<DaemonIdentity>>(lock, server, [&](kj::AsyncIoContext& io) {
    auto loggedIn = streamOver(io, std::move(fd), address, options.tls)
                        .then([&](Result<wire::Socket> socket) -> kj::Promise<Result<DaemonIdentity>> {
                          if (!socket.ok()) return Result<DaemonIdentity>(socket.error());
                          fresh = kj::heap<Channel>(io, *kj::mv(socket), server, options);
                          return fresh->logIn();
                        });
    return io.provider->getTimer().timeoutAfter(timeout.count() * kj::MILLISECONDS, kj::mv(loggedIn));
  });
  if (identity.ok()) server_ = server;
  io_.runSync([&](kj::AsyncIoContext&) {
    if (identity.ok()) {
      retired_ = kj::mv(channel_);
      channel_ = kj::mv(fresh);
      channel_->watchLiveness(options.silence);
    }
    fresh = nullptr;
  });
  return identity;
}

void Link::post(std::function<void(Channel&)> work) {
  io_.post([this, work = std::move(work)] {
    if (channel_.get() != nullptr) work(*channel_);
  });
}

void Link::carry(uint32_t number, uint32_t links) {
  look([&](Channel& channel) { encoder_ = channel.carry(number, links, encoder_); });
}

void Link::fail(const Error& why) {
  io_.runSync([&](kj::AsyncIoContext&) -> kj::Promise<void> {
    if (channel_.get() == nullptr) return kj::READY_NOW;
    return channel_->fail(why);
  });
}

void Link::failAsync(const Error& why) {
  post([this, why](Channel& channel) { tasks_->add(channel.fail(why)); });
}

void Link::leaveAsync(const Error& why) {
  post([this, why](Channel& channel) { goodbyes_->add(channel.leaveAndFail(why)); });
}

template <class T>
bool Answers<T>::readyWithin(std::chrono::milliseconds time) const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [&](const auto& part) { return part.wait_for(time) == std::future_status::ready; });
}

template <class T>
Result<T> Answers<T>::get() const {
  Result<T> sum = parts_.front().get();
  for (size_t i = 1; i < parts_.size(); i++) {
    const Result<T>& part = parts_[i].get();
    if (!part.ok()) {
      if (sum.ok() || (isLost(sum.error()) && !isLost(part.error()))) sum = part;
    } else if (sum.ok()) {
      sum->add(*part);
    }
  }
  return sum;
}

template class Answers<PullInfo>;
template class Answers<PushInfo>;

}  // namespace psd
