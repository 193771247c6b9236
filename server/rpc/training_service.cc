#include "server/rpc/training_service.h"

#include <spdlog/spdlog.h>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "server/control/control.h"
#include "server/rpc/model_access.h"
#include "server/rpc/trainer_session.h"

namespace psd {
namespace {

constexpr kj::uint kHeldMax = 1024;  // far more than are dealt at a time

/// A list of structs that take no bytes may claim to be very long.
Result<std::vector<HeldSamples>> readHeld(capnp::List<schema::HeldSamples>::Reader list) {
  if (list.size() > kHeldMax) {
    return Error{ErrorCode::invalidArgument, "samples of " + std::to_string(list.size()) +
                                                 " steps; no trainer has those of more than " +
                                                 std::to_string(kHeldMax)};
  }
  std::vector<HeldSamples> held;
  for (const auto& each : list) {
    held.push_back({Step{each.getStep()}, {each.getEpoch(), each.getBegin(), each.getCount()}});
  }
  return held;
}

}  // namespace

kj::Promise<void> TrainingService::join(JoinContext context) {
  auto params = context.getParams();
  auto refuse = [this, context](const Error& error) mutable -> kj::Promise<void> {
    loop_.environment().counters.joinsRefused.add();
    wire::writeError(error, context.getResults().initError());
    return kj::READY_NOW;
  };
  if (auto may = connection_->mayServe(); !may.ok()) return refuse(may.error());
  context.allowCancellation();  // the model may take long to load
  auto model = wire::readModel(params.getModel());
  if (!model.ok()) {
    spdlog::warn("refused {}: {}", connection_->peer(), model.message());
    return refuse(model.error());
  }
  auto host = params.getHost();
  Candidate candidate{Rank{params.getRank()}, params.getWorldSize(),   printable({host.begin(), host.size()}),
                      params.getPid(),        params.getIncarnation(), params.getDaemon()};
  candidate.anyRank = params.getAnyRank();
  const CodecsConfig& codecs = loop_.config().codecs;
  auto codec = codecs.push.choose(printable(wire::textIn(params.getCodec())));
  if (!codec.ok()) return refuse({codec.error().code, "pushes: " + codec.message()});
  if (Status fits = checkPushCodec(**codec, loop_.config().groups); !fits.ok()) {
    return refuse({fits.error().code, "pushes: " + fits.message()});
  }
  auto pullCodec = codecs.pull.choose(printable(wire::textIn(params.getPullCodec())));
  if (!pullCodec.ok()) return refuse({pullCodec.error().code, "pulls: " + pullCodec.message()});
  candidate.codec = (*codec)->spec();
  candidate.pullCodec = (*pullCodec)->spec();
  auto held = readHeld(params.getHeld());
  if (!held.ok()) return refuse(held.error());
  if (!held->empty()) loop_.environment().dealsSamples = true;
  context.releaseParams();
  return loop_
      .onControl([candidate, held = *std::move(held), model = std::move(*model),
                  loop = loop_.shared_from_this()](Control& control) mutable {
        return control.join(std::move(candidate), std::move(held), std::move(model), std::move(loop));
      })
      .then([this, context, refuse](Result<Joined> joined) mutable -> kj::Promise<void> {
        if (!joined.ok()) return refuse(joined.error());
        auto out = context.getResults().initJoined();
        writeAccess(*joined->model, *connection_, out.initAccess());
        out.setLeaseMs(loop_.config().membership.leaseMs);
        out.setDaemon(joined->daemonId);
        out.setResumed(joined->resumed);
        out.setRank(joined->trainer.rank.value);
        out.setWorldSize(joined->worldSize);
        out.setMustInitialize(joined->role == ModelStart::Role::bringValues);
        out.setAttachment(joined->attachment);
        out.setCodec(joined->codec.c_str());
        out.setPullCodec(joined->pullCodec.c_str());
        out.setSession(kj::heap<TrainerSession>(connection_, *joined));
        return kj::READY_NOW;
      });
}

kj::Promise<void> TrainingService::attach(AttachContext context) {
  auto refuse = [context](const Error& error) mutable -> kj::Promise<void> {
    wire::writeError(error, context.getResults().initError());
    return kj::READY_NOW;
  };
  if (auto may = connection_->mayServe(); !may.ok()) return refuse(may.error());
  auto params = context.getParams();
  const AttachRequest request{Rank{params.getRank()}, params.getIncarnation(), params.getAttachment()};
  context.releaseParams();
  return loop_.onControl([request](Control& control) { return control.attach(request); })
      .then([this, context, refuse](Result<Joined> joined) mutable -> kj::Promise<void> {
        if (!joined.ok()) return refuse(joined.error());
        context.getResults().setSession(kj::heap<TrainerSession>(connection_, *joined));
        return kj::READY_NOW;
      });
}

}  // namespace psd
