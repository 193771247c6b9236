// The side of a Channel that reads parameters from the daemon's memory.

#include <algorithm>
#include <chrono>

#include "common/wire/convert.h"
#include "trainer/client/channel.h"

namespace psd {
namespace {

constexpr uint64_t kCopyElements = (8u << 20) / sizeof(float);  // at a time, about a millisecond

}  // namespace

kj::Promise<Status> Channel::share(schema::ModelAccess::Reader access) {
  if (transport_ == Transport::rpc) return Status();
  if (!access.hasSharedModel()) {
    if (transport_ == Transport::automatic) return Status();
    std::string why = wire::printable(wire::textIn(access.getNotShared()));
    return Status(ErrorCode::invalidArgument,
                  "transport shm: " + server_ + ": " + (why.empty() ? "the daemon offers none" : why));
  }
  auto shared = access.getSharedModel();
  SharedModel::Places places{shared.getValuesAt(), shared.getVersionsAt(), shared.getVersionStep(),
                             shared.getReadableAt()};
  auto memory = shared.getMemory();
  auto fd = memory.getFd();
  // The descriptor belongs to the capability.
  return fd.then([this, places](kj::Maybe<int> fd) { return openShared(fd, places); }).attach(kj::mv(memory));
}

Status Channel::openShared(kj::Maybe<int> fd, const SharedModel::Places& places) {
  int file = -1;
  KJ_IF_MAYBE (passed, fd) {
    file = *passed;
  }
  auto opened = SharedModel::open(file, places, terms_.plan);
  if (opened.ok()) {
    shared_ = std::move(*opened);
    // Its pulls make no calls, in which the end of the connection would show.
    lost_ = network_->onDisconnect().then([this] { connectionLost(); }).eagerlyEvaluate(nullptr);
    return {};
  }
  if (transport_ == Transport::automatic) return {};  // messages do as well
  return {opened.error().code, "transport shm: " + server_ + ": " + opened.message()};
}

void Channel::connectionLost() { end({ErrorCode::unavailable, "the connection to " + server_ + " broke"}); }

kj::Promise<Result<PullInfo>> Channel::pullShared(std::span<float> destination) {
  // Later, so that whoever starts a pull need not wait for the copy.
  return kj::evalLater([this, destination] {
    const auto start = std::chrono::steady_clock::now();
    // Before the values: updates that land in between make them newer than this says, never older.
    auto versions = shared_->versions();
    return copyShared(destination, 0)
        .then([start, destination, versions = kj::mv(versions)](Status status) mutable -> Result<PullInfo> {
          if (!status.ok()) return status.error();
          const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
          return PullInfo{std::move(versions), taken.count(), destination.size_bytes()};
        });
  });
}

kj::Promise<Status> Channel::copyShared(std::span<float> destination, uint64_t begin) {
  if (ended_) return Status(*ended_);
  const uint64_t count = std::min<uint64_t>(kCopyElements, destination.size() - begin);
  shared_->copy(begin, destination.subspan(begin, count));
  if (begin + count == destination.size()) return Status();
  // By way of the timer, which lets the loop see to its sockets: the lease of a large model's trainer would
  // run out during the copy.
  return timer_.afterDelay(0 * kj::NANOSECONDS).then([this, destination, begin, count] {
    return copyShared(destination, begin + count);
  });
}

}  // namespace psd
