// The side of a TrainerSession that takes gradients, in messages or through rings, and has the rings.

#include <utility>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "server/model/slice_checks.h"
#include "server/rpc/shared_memory_service.h"
#include "server/rpc/trainer_session.h"

namespace psd {
namespace {

schema::PushOutcome toWire(PushOutcome outcome) {
  switch (outcome) {
    case PushOutcome::received: return schema::PushOutcome::RECEIVED;
    case PushOutcome::applied: return schema::PushOutcome::APPLIED;
    case PushOutcome::stale: return schema::PushOutcome::STALE;
    case PushOutcome::late: return schema::PushOutcome::LATE;
  }
  return schema::PushOutcome::RECEIVED;
}

template <class Context>
kj::Promise<void> answerPush(Context context, const PushReply& reply) {
  auto results = context.getResults();
  if (reply.answer.ok()) {
    auto accepted = results.initAccepted();
    accepted.setOutcome(toWire(reply.answer->outcome));
    accepted.setVersion(reply.answer->version.value);
    accepted.setStaleness(reply.answer->staleness);
  } else {
    wire::writeError(reply.answer.error(), results.initError());
  }
  if (!reply.dropped.empty()) {
    results.setDropped(kj::ArrayPtr<const uint32_t>(reply.dropped.data(), reply.dropped.size()));
  }
  return kj::READY_NOW;
}

/// Has the parameters of a call, and with them their share of limits.in_flight_bytes, go once `held` is
/// dropped: on this loop, or, unless `here`, on another. To be kept as long as the call.
template <class Context>
kj::Promise<void> releasesParams(Context context, bool here, std::shared_ptr<const void>& held) {
  if (here) {
    held = {nullptr, [context](const void*) mutable { context.releaseParams(); }};
    return kj::READY_NOW;
  }
  auto dropped = kj::newPromiseAndCrossThreadFulfiller<void>();
  auto fulfiller =
      std::make_shared<kj::Own<kj::CrossThreadPromiseFulfiller<void>>>(kj::mv(dropped.fulfiller));
  held = {nullptr, [fulfiller](const void*) { (*fulfiller)->fulfill(); }};
  return dropped.promise.then([context]() mutable { context.releaseParams(); })
      .eagerlyEvaluate([](kj::Exception&&) {});
}

}  // namespace

Result<Gradient> TrainerSession::gradientIn(schema::Trainer::PushParams::Reader params) const {
  const std::string_view name = wire::textIn(params.getCodec());
  if (name.empty()) {
    PSD_ASSIGN_OR_RETURN(const auto values, wire::floatsIn(params.getGradient()));
    return Gradient(values);
  }
  if (codec_ == nullptr || name != codec_->name()) return notAgreed(printable(name), codec_);
  return Gradient(*codec_, wire::bytesIn(params.getGradient()), params.getCount());
}

template <class Context>
kj::Promise<void> TrainerSession::takePush(Context context, const Result<Gradient>& gradient,
                                           std::shared_ptr<const void> deviceRing) {
  if (!gradient.ok()) {
    countRefusal(loop_.environment().counters, gradient.error());
    return answerPush(context, {gradient.error()});
  }
  if (auto status = mayTrain(); !status.ok()) return answerPush(context, {status.error()});
  auto head = context.getParams().getHead();
  PushSlice slice{.head = {.step = Step{head.getStep()},
                           .shard = head.getShard(),
                           .offset = head.getOffset(),
                           .count = gradient->size(),
                           .basis = Version{head.getBasis()},
                           .samples = head.getSamples(),
                           .parts = head.getParts()},
                  .attachment = {epoch_, attachment_},
                  .gradient = *gradient,
                  .ring = std::move(deviceRing)};
  auto released = releasesParams(context, pushes_->isHome(), slice.held);
  return pushes_->push(std::move(slice), loop_.config().limits)
      .then([context](const PushReply& reply) mutable { return answerPush(context, reply); })
      .attach(kj::mv(released));
}

kj::Promise<void> TrainerSession::push(PushContext context) {
  return takePush(context, gradientIn(context.getParams()));
}

kj::Promise<void> TrainerSession::pushShared(PushSharedContext context) {
  if (!ring_)
    return answerPush(context, {Error{ErrorCode::invalidArgument, "this trainer has opened no ring"}});
  auto params = context.getParams();
  const auto values = ring_->floatsAt(params.getAt(), params.getCount());
  if (!values.ok()) return takePush(context, values.error());
  return takePush(context, Gradient::inSharedMemory(*values));
}

Result<std::shared_ptr<DeviceRing>> TrainerSession::deviceRingOf(uint32_t shard) const {
  if (shard >= model_->store->shardCount()) {
    return Error{ErrorCode::badSlice, "shard " + std::to_string(shard) + ": there are " +
                                          std::to_string(model_->store->shardCount()) +
                                          " shards, numbered from 0"};
  }
  const size_t device = model_->store->shard(shard).device();
  if (device < deviceRings_.size() && deviceRings_[device]) return deviceRings_[device];
  return Error{ErrorCode::invalidArgument,
               "this trainer has opened no ring of device " + std::to_string(device)};
}

kj::Promise<void> TrainerSession::pushFromDevice(PushFromDeviceContext context) {
  auto params = context.getParams();
  const auto ring = deviceRingOf(params.getHead().getShard());
  if (!ring.ok()) return takePush(context, ring.error());
  const auto values = (*ring)->floatsAt(params.getAt(), params.getCount());
  if (!values.ok()) return takePush(context, values.error());
  auto lease = (*ring)->leaseCopy(values->size_bytes());
  if (!lease.ok()) return takePush(context, lease.error());
  using Announced = std::pair<std::shared_ptr<DeviceRing>, ByteBudget::Lease>;
  return takePush(context, Gradient::onDevice(*values),
                  std::make_shared<const Announced>(*ring, std::move(*lease)));
}

kj::Promise<void> TrainerSession::pullToDevice(PullToDeviceContext context) {
  const auto ring = deviceRingOf(context.getParams().getShard());
  Status allowed = ring.ok() ? mayTrain() : ring.status();
  if (allowed.ok()) return pulls_.pullTo(*ring, context);
  countRefusal(loop_.environment().counters, allowed.error());
  wire::writeError(allowed.error(), context.getResults().initError());
  return kj::READY_NOW;
}

Result<std::shared_ptr<DeviceRing>> TrainerSession::makeDeviceRing(uint32_t device, uint64_t bytes) {
  PSD_RETURN_IF_ERROR(renewLease());
  if (!connection_->passesDescriptors()) {
    return Error{ErrorCode::invalidArgument, "a ring on a device needs a Unix socket"};
  }
  if (device < deviceRings_.size() && deviceRings_[device]) {
    return Error{ErrorCode::invalidArgument,
                 "this trainer has opened its ring of device " + std::to_string(device) + " already"};
  }
  PSD_ASSIGN_OR_RETURN(auto ring, DeviceRing::make(*model_->store, device, bytes, loop_.config().limits,
                                                   *loop_.environment().budgets.rings));
  deviceRings_.resize(model_->store->deviceCount());
  return deviceRings_[device] = std::move(ring);
}

kj::Promise<void> TrainerSession::openDeviceRing(OpenDeviceRingContext context) {
  auto params = context.getParams();
  const auto ring = makeDeviceRing(params.getDevice(), params.getBytes());
  auto results = context.getResults();
  if (ring.ok()) {
    const auto handle = (*ring)->handle();
    results.setHandle(kj::arrayPtr(reinterpret_cast<const kj::byte*>(handle.data()), handle.size()));
  } else {
    wire::writeError(ring.error(), results.initError());
  }
  return kj::READY_NOW;
}

Result<std::shared_ptr<SharedMemory>> TrainerSession::makeRing(uint64_t bytes) {
  if (ring_) return Error{ErrorCode::invalidArgument, "this trainer has opened its ring already"};
  if (!connection_->passesDescriptors()) {
    return Error{ErrorCode::invalidArgument, "a ring needs a Unix socket"};
  }
  const MemoryBudgets& budgets = loop_.environment().budgets;
  PSD_ASSIGN_OR_RETURN(ring_,
                       PushRing::make(bytes, loop_.config().limits, *budgets.rings, *budgets.ringFiles));
  return ring_->memory();
}

kj::Promise<void> TrainerSession::openRing(OpenRingContext context) {
  if (auto status = renewLease(); !status.ok()) {
    wire::writeError(status.error(), context.getResults().initError());
    return kj::READY_NOW;
  }
  auto memory = makeRing(context.getParams().getBytes());
  if (memory.ok()) {
    context.getResults().setMemory(kj::heap<SharedMemoryService>(connection_, *memory));
  } else {
    wire::writeError(memory.error(), context.getResults().initError());
  }
  return kj::READY_NOW;
}

}  // namespace psd
