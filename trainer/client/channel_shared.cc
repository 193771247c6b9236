// The side of a Channel that reads parameters from the daemon's memory.

#include <thread>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "trainer/client/channel.h"

namespace psd {
namespace {

constexpr int kPiecesPerTurn = 16;  // about a millisecond

}  // namespace

kj::Promise<Status> Channel::share(schema::ModelAccess::Reader access) {
  if (transport_ == Transport::rpc) return Status();
  if (!access.hasSharedModel()) {
    if (transport_ == Transport::automatic) return Status();
    std::string why = printable(wire::textIn(access.getNotShared()));
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
    // Pulls out of shared memory make no calls, in which the end of the connection would show.
    lost_ = network_->onDisconnect().then([this] { connectionLost(); }).eagerlyEvaluate(nullptr);
    return {};
  }
  if (transport_ == Transport::automatic) return {};  // messages do as well
  return {opened.error().code, "transport shm: " + server_ + ": " + opened.message()};
}

void Channel::connectionLost() { end({ErrorCode::unavailable, "the connection to " + server_ + " broke"}); }

kj::Promise<Result<PullInfo>> Channel::pullShared(std::shared_ptr<SharedCopy> copy) {
  // Later, so that what the socket has to say of the connection's end is heard first.
  return kj::evalLater([this, copy] { return copyPieces(copy); })
      .then([copy](Status status) -> Result<PullInfo> {
        if (!status.ok()) return status.error();
        return copy->info();
      });
}

kj::Promise<Status> Channel::copyPieces(std::shared_ptr<SharedCopy> copy) {
  if (ended_) {
    copy->stop();
    return Status(*ended_);
  }
  bool taken = true;
  for (int i = 0; i < kPiecesPerTurn && taken; i++) taken = copy->copyPiece();
  if (copy->done()) return Status();
  // Another thread has the last piece, for some microseconds; a timer would wait for a millisecond.
  if (!taken) std::this_thread::yield();
  // By way of the timer, which lets the loop see to its sockets: the lease of a large model's trainer would
  // run out during the copy.
  return timer_.afterDelay(0 * kj::NANOSECONDS).then([this, copy = std::move(copy)]() mutable {
    return copyPieces(std::move(copy));
  });
}

}  // namespace psd
