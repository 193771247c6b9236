// TrainerSession: pushes, in messages or through rings, and the opening of rings.

#include <utility>

#include "common/wire/convert.h"
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

/// Releases the parameters of a call, and with them their share of limits.in_flight_bytes, once `held` is
/// dropped: on this loop if `here`, else on another. Keep the result as long as the call.
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
  const std::string_view codec = wire::textIn(params.getCodec());
  if (codec.empty())
    return service_->valuesOf(params.getHead().getShard(), wire::bytesIn(params.getGradient()));
  return service_->gradientOf(codec, wire::bytesIn(params.getGradient()), params.getCount());
}

template <class Context>
kj::Promise<void> TrainerSession::takePush(Context context, const Result<Gradient>& gradient,
                                           std::shared_ptr<const void> deviceRing,
                                           std::optional<OwnedRowRuns> rows) {
  if (!gradient.ok()) return answerPush(context, service_->refused(gradient.error()));
  auto head = context.getParams().getHead();
  std::shared_ptr<const Hyperparameters> hyperparameters;
  if (head.hasHyperparameters()) {
    auto read = wire::readHyperparameters(head.getHyperparameters());
    if (!read.ok()) return answerPush(context, service_->refused(read.error()));
    hyperparameters = *std::move(read);
  }
  PushSlice slice{.head = {.step = Step{head.getStep()},
                           .shard = head.getShard(),
                           .offset = head.getOffset(),
                           .count = rows ? rows->ids.size() : gradient->size(),
                           .basis = Version{head.getBasis()},
                           .samples = head.getSamples(),
                           .localSteps = head.getLocalSteps(),
                           .parts = head.getParts(),
                           .total = head.getTotal(),
                           .hyperparameters = std::move(hyperparameters),
                           .leadRound = head.getLeadRound()},
                  .gradient = *gradient,
                  .rows = std::move(rows),
                  .ring = std::move(deviceRing)};
  auto released = releasesParams(context, service_->isPushLoop(), slice.held);
  return service_->push(std::move(slice))
      .then([context](const PushReply& reply) mutable { return answerPush(context, reply); })
      .attach(kj::mv(released));
}

Result<Gradient> TrainerSession::gradientIn(schema::Trainer::PushRowsParams::Reader params,
                                            const RowIds& rows) const {
  const std::string_view codec = wire::textIn(params.getCodec());
  if (!codec.empty()) return service_->gradientOfRows(codec, wire::bytesIn(params.getGradient()), rows);
  PSD_ASSIGN_OR_RETURN(const auto values, wire::floatsIn(params.getGradient()));
  return Gradient(values);
}

kj::Promise<void> TrainerSession::push(PushContext context) {
  return takePush(context, gradientIn(context.getParams()));
}

kj::Promise<void> TrainerSession::pushRows(PushRowsContext context) {
  auto params = context.getParams();
  auto rows = wire::rowsIn(params.getRuns(), params.getIds());
  if (!rows.ok()) return takePush(context, rows.error());
  const auto gradient = gradientIn(params, rows->view());
  return takePush(context, gradient, nullptr, *std::move(rows));
}

kj::Promise<void> TrainerSession::pushRowsShared(PushRowsSharedContext context) {
  auto params = context.getParams();
  auto rows = wire::rowsIn(params.getRuns(), params.getIds());
  if (!rows.ok()) return takePush(context, rows.error());
  const auto gradient = service_->rowGradientInRing(params.getAt(), rows->view());
  return takePush(context, gradient, nullptr, *std::move(rows));
}

kj::Promise<void> TrainerSession::pullRowsShared(PullRowsSharedContext context) {
  const auto ring = service_->rings().host();
  const Status allowed = ring.ok() ? service_->mayTrain() : ring.status();
  if (allowed.ok()) return pulls_.pullRowsTo(**ring, context);
  wire::writeError(service_->refused(allowed.error()).answer.error(), context.getResults().initError());
  return kj::READY_NOW;
}

kj::Promise<void> TrainerSession::pushShared(PushSharedContext context) {
  auto params = context.getParams();
  return takePush(context, service_->gradientInRing(params.getAt(), params.getCount()));
}

kj::Promise<void> TrainerSession::pushFromDevice(PushFromDeviceContext context) {
  auto params = context.getParams();
  auto lies = service_->gradientInDeviceRing(params.getHead().getShard(), params.getAt(), params.getCount());
  if (!lies.ok()) return takePush(context, lies.error());
  return takePush(context, lies->gradient, std::move(lies->ring));
}

kj::Promise<void> TrainerSession::pullToDevice(PullToDeviceContext context) {
  const auto ring = service_->rings().onDeviceOf(context.getParams().getShard());
  const Status allowed = ring.ok() ? service_->mayTrain() : ring.status();
  if (allowed.ok()) return pulls_.pullTo(*ring, context);
  wire::writeError(service_->refused(allowed.error()).answer.error(), context.getResults().initError());
  return kj::READY_NOW;
}

Status TrainerSession::mayShare(const char* what) {
  PSD_RETURN_IF_ERROR(service_->renewLease());
  if (connection_->passesDescriptors()) return {};
  return {ErrorCode::invalidArgument, std::string(what) + " needs a Unix socket"};
}

kj::Promise<void> TrainerSession::openDeviceRing(OpenDeviceRingContext context) {
  auto params = context.getParams();
  auto results = context.getResults();
  const Status may = mayShare("a ring on a device");
  const auto ring = may.ok() ? service_->rings().openOnDevice(params.getDevice(), params.getBytes())
                             : Result<std::shared_ptr<DeviceRing>>(may.error());
  if (ring.ok()) {
    const auto handle = (*ring)->handle();
    results.setHandle(kj::arrayPtr(reinterpret_cast<const kj::byte*>(handle.data()), handle.size()));
  } else {
    wire::writeError(ring.error(), results.initError());
  }
  return kj::READY_NOW;
}

kj::Promise<void> TrainerSession::openRing(OpenRingContext context) {
  const Status may = mayShare("a ring");
  const auto memory = may.ok() ? service_->rings().open(context.getParams().getBytes())
                               : Result<std::shared_ptr<SharedMemory>>(may.error());
  if (memory.ok()) {
    context.getResults().setMemory(kj::heap<SharedMemoryService>(connection_, *memory));
  } else {
    wire::writeError(memory.error(), context.getResults().initError());
  }
  return kj::READY_NOW;
}

}  // namespace psd
