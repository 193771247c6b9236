// The side of a Channel that pushes gradients, in messages or through the ring.

#include <algorithm>
#include <chrono>

#include <kj/debug.h>

#include "common/types/model_layout.h"
#include "common/wire/convert.h"
#include "trainer/client/channel.h"

namespace psd {
namespace {

Error cleared(Error error) {
  error.message = wire::printable(error.message, 500);
  return error;
}

/// What one slice's answer says of the push.
PushOutcome outcomeOf(schema::PushOutcome outcome) {
  switch (outcome) {
    case schema::PushOutcome::STALE: return PushOutcome::stale;
    case schema::PushOutcome::LATE: return PushOutcome::late;
    default: return PushOutcome::applied;
  }
}

/// Sets what a push says besides where its gradient is.
template <class Request>
void describe(Request& request, const PushOrder& order, const Slice& slice) {
  const size_t shard = slice.shard.value;
  request.setStep(order.step.value);
  request.setShard(slice.shard.value);
  request.setOffset(slice.offset);
  request.setBasis(shard < order.basis.size() ? order.basis[shard].value : 0);
  request.setSamples(order.samples);
}

}  // namespace

kj::Promise<Channel::PushResponse> Channel::sendInMessage(const PushOrder& order, const Slice& slice) {
  auto request = KJ_ASSERT_NONNULL(trainer_).pushRequest(capnp::MessageSize{16, 0});
  describe(request, order, slice);
  request.adoptGradient(wire::referenceFloats(static_cast<schema::Trainer::PushParams::Builder&>(request),
                                              order.gradient.subspan(slice.arena, slice.count)));
  return request.send().dropPipeline();
}

kj::Promise<Channel::PushResponse> Channel::sendThroughRing(const PushOrder& order, const Slice& slice) {
  ClientPushRing::Place place = ring_->take();
  place.fill(order.gradient.subspan(slice.arena, slice.count));
  auto request = KJ_ASSERT_NONNULL(trainer_).pushSharedRequest(capnp::MessageSize{16, 0});
  describe(request, order, slice);
  request.setAt(place.at());
  request.setCount(slice.count);
  return request.send().dropPipeline().attach(std::move(place));
}

kj::Promise<Status> Channel::pushSlice(const PushOrder& order, const Slice& slice, PushInfo& info) {
  auto answered = ring_ ? sendThroughRing(order, slice) : sendInMessage(order, slice);
  return answered.then([&info, shard = slice.shard.value](PushResponse answer) -> Status {
    if (answer.isError()) return cleared(wire::readError(answer.getError()));
    auto accepted = answer.getAccepted();
    info.versions[shard] = std::max(info.versions[shard], Version{accepted.getVersion()});
    info.staleness = std::max(info.staleness, accepted.getStaleness());
    info.outcome = std::max(info.outcome, outcomeOf(accepted.getOutcome()));
    return {};
  });
}

kj::Promise<Result<PushInfo>> Channel::beginPush(const PushOrder& order, uint32_t window) {
  if (ended_) return Result<PushInfo>(*ended_);
  if (trainer_ == nullptr) return Result<PushInfo>(ErrorCode::invalidArgument, "push() comes after join()");
  auto start = std::chrono::steady_clock::now();
  auto info = std::make_shared<PushInfo>();
  info->versions.resize(plan_.shards.size());
  if (ring_) window = std::min(window, ring_->places());
  auto sent = pushes_.add(order.step, slices_.size(), window, [this, order, info](size_t index) {
    return pushSlice(order, slices_[index], *info);
  });
  return guarded<PushInfo>(sent.then([start, info](Status status) -> Result<PushInfo> {
    if (!status.ok()) return status.error();
    info->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(*info);
  }));
}

kj::Promise<Status> Channel::openRing(uint64_t bytesMax, uint32_t window) {
  if (transport_ == Transport::rpc) return Status();
  constexpr uint64_t kGrain = kLayoutGrainElements;
  uint64_t largest = 0;  // elements
  for (const Slice& slice : slices_) largest = std::max(largest, slice.count);
  const uint64_t placeBytes = (largest + kGrain - 1) / kGrain * kGrain * sizeof(float);
  const auto places = static_cast<uint32_t>(std::min<uint64_t>(std::max(window, 1u), bytesMax / placeBytes));
  if (places == 0) {
    return noRing({ErrorCode::invalidArgument, "a ring of " + std::to_string(bytesMax) +
                                                   " bytes, the daemon's most, holds no slice of " +
                                                   std::to_string(placeBytes)});
  }
  auto request = KJ_ASSERT_NONNULL(trainer_).openRingRequest();
  request.setBytes(placeBytes * places);
  return request.send().then(
      [this, placeBytes, places](capnp::Response<schema::RingResult> answer) -> kj::Promise<Status> {
        if (answer.isError()) return noRing(cleared(wire::readError(answer.getError())));
        auto memory = answer.getMemory();
        auto fd = memory.getFd();
        return fd
            .then([this, placeBytes, places](kj::Maybe<int> fd) -> Status {
              auto ring = ClientPushRing::open(fd.orDefault(-1), placeBytes, places);
              if (!ring.ok()) return noRing(ring.error());
              ring_ = std::move(*ring);
              return {};
            })
            .attach(kj::mv(memory));  // the descriptor is its
      });
}

Status Channel::noRing(const Error& why) const {
  if (transport_ == Transport::automatic) return {};  // messages do as well
  return {why.code, "transport shm: " + server_ + ": " + why.message};
}

}  // namespace psd
