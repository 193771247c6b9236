// The side of a Channel that pushes gradients, in messages or through the ring.

#include <algorithm>
#include <chrono>

#include <kj/debug.h>

#include "common/types/model_layout.h"
#include "common/wire/convert.h"
#include "trainer/client/channel.h"
#include "trainer/client/cleared.h"
#include "trainer/client/push_messages.h"

namespace psd {
kj::Promise<Channel::PushResponse> Channel::sendInMessage(const PushOrder& order, const Slice& slice,
                                                          const SliceValues& values) {
  auto request = KJ_ASSERT_NONNULL(trainer_).pushRequest(capnp::MessageSize{16, 0});
  describe(request.initHead(), order, slice, terms_.plan.shards.size());
  if (values.owner) stream_->pin(values.values.data(), values.owner);
  request.adoptGradient(
      wire::referenceFloats(static_cast<schema::Trainer::PushParams::Builder&>(request), values.values));
  return request.send().dropPipeline();
}

kj::Promise<Channel::PushResponse> Channel::sendThroughRing(const PushOrder& order, const Slice& slice,
                                                            const SliceValues& values) {
  RingPlaces::Place place = ring_->places().take();
  ring_->fill(place, values.values);
  auto request = KJ_ASSERT_NONNULL(trainer_).pushSharedRequest(capnp::MessageSize{16, 0});
  describe(request.initHead(), order, slice, terms_.plan.shards.size());
  request.setAt(place.at());
  request.setCount(slice.count);
  return request.send().dropPipeline().then([place = std::move(place)](PushResponse answer) mutable {
    place.giveBack();
    return answer;
  });
}

kj::Promise<Status> Channel::pushSlice(const PushOrder& order, const Slice& slice, PushProgress& push) {
  if (order.onDevice && deviceRings_) return pushThroughDevice(order, slice, push);
  const auto values = valuesOf(order, slice);
  if (!values.ok()) return values.status();
  if (encoder_) return pushEncoded(order, slice, values->values, push);
  auto answered = ring_ ? sendThroughRing(order, slice, *values) : sendInMessage(order, slice, *values);
  return answered.then([slice, &push](PushResponse answer) {
    return readAnswer(answer, slice, slice.count * sizeof(float), push.info);
  });
}

kj::Promise<Status> Channel::pushEncoded(const PushOrder& order, const Slice& slice,
                                         std::span<const float> values, PushProgress& push) {
  auto encoded = encoder_->encode(order.step, slice, values);
  if (!encoded.ok()) return encoded.status();
  auto request = KJ_ASSERT_NONNULL(trainer_).pushRequest(capnp::MessageSize{16, 0});
  describe(request.initHead(), order, slice, terms_.plan.shards.size());
  request.setCodec(std::string(encoder_->codec().name()).c_str());
  request.setCount(static_cast<uint32_t>(slice.count));
  stream_->pin(encoded->bytes.data(), encoded->owner);
  request.adoptGradient(
      wire::referenceBytes(static_cast<schema::Trainer::PushParams::Builder&>(request), encoded->bytes));
  // What is not taken goes into the next push. A push that carries the most urgent of many steps is more
  // than one step's gradient, so it is not dropped as that would be. A shard decides with the answer to its
  // last slice, or the step's last slice tells of all. Where there is no answer, the slice may be sent again,
  // or the client is at its end.
  return request.send().then([this, step = order.step, slice, bytes = encoded->bytes.size(),
                              dropped = order.dropped, &push](PushResponse answer) -> Status {
    Status status = readAnswer(answer, slice, bytes, push.info);
    auto& undecided = push.undecided[slice.shard];
    if (answer.getDropped().size() > 0) {
      undecided.push_back(slice);
      for (const uint32_t shard : answer.getDropped()) dropped->push_back(ShardId{shard});
      return status;
    }
    if (!status.ok()) {
      if (!isLost(status.error())) encoder_->takeBack(step, slice);
      return status;
    }
    undecided.push_back(slice);
    const auto outcome = answer.getAccepted().getOutcome();
    if (outcome == schema::PushOutcome::RECEIVED) return {};
    for (const Slice& decided : undecided) {
      if (outcome == schema::PushOutcome::APPLIED) {
        encoder_->applied(step, decided);
      } else {
        encoder_->takeBack(step, decided);
      }
    }
    undecided.clear();
    return {};
  });
}

void Channel::concludePush(Step step, const std::vector<ShardId>& dropped) {
  if (!encoder_) return;
  UndecidedSlices& undecided = undecided_[step];
  for (const ShardId shard : dropped) {
    for (const Slice& slice : undecided[shard]) encoder_->takeBack(step, slice);
  }
  undecided_.erase(step);
  encoder_->finished(step);
}

kj::Promise<Result<PushInfo>> Channel::beginPush(const PushOrder& order, uint32_t window) {
  if (ended_) return Result<PushInfo>(*ended_);
  if (trainer_ == nullptr) return Result<PushInfo>(ErrorCode::invalidArgument, "push() comes after join()");
  auto start = std::chrono::steady_clock::now();
  auto push = std::make_shared<PushProgress>();
  push->info.versions.resize(terms_.plan.shards.size());
  if (ring_) window = std::min(window, ring_->places().count());
  if (deviceRings_) window = std::min(window, deviceRings_->placesEach());
  auto sent = pushes_.add(order.step, carried_.size(), window, [this, order, push](size_t index) {
    return pushSlice(order, carried_[index], *push);
  });
  return guarded<PushInfo>(sent.then([this, order, start, push](Status status) -> Result<PushInfo> {
    if (encoder_ && (status.ok() || !isLost(status.error()))) {
      undecided_[order.step] = std::move(push->undecided);
      if (links_ == 1) concludePush(order.step, *order.dropped);
    }
    if (!status.ok()) return status.error();
    push->info.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(push->info);
  }));
}

Channel::PlaceSizes Channel::placesFor(uint64_t bytesMax, uint32_t window) const {
  constexpr uint64_t kGrain = kLayoutGrainElements;
  uint64_t largest = 0;  // elements
  for (const Slice& slice : terms_.slices) largest = std::max(largest, slice.count);
  const uint64_t bytes = (largest + kGrain - 1) / kGrain * kGrain * sizeof(float);
  return {bytes, static_cast<uint32_t>(std::min<uint64_t>(std::max(window, 1u), bytesMax / bytes))};
}

kj::Promise<Status> Channel::openRing(uint64_t bytesMax, uint32_t window) {
  if (transport_ == Transport::rpc || deviceRings_) return Status();
  if (terms_.codec) {  // bytes cost little there, encoding does not
    return noRing(
        {ErrorCode::invalidArgument, "gradients go in messages where a codec is used, here " + codec()});
  }
  const auto [placeBytes, places] = placesFor(bytesMax, window);
  if (places == 0) {
    return noRing({ErrorCode::invalidArgument, "a ring of " + std::to_string(bytesMax) +
                                                   " bytes, the daemon's most, holds no slice of " +
                                                   std::to_string(placeBytes)});
  }
  auto request = KJ_ASSERT_NONNULL(trainer_).openRingRequest();
  request.setBytes(placeBytes * places);
  return request.send().then([this, placeBytes = placeBytes, places = places](
                                 capnp::Response<schema::RingResult> answer) -> kj::Promise<Status> {
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
