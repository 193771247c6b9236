#include "server/rpc/training_service.h"

#include "common/log/log_line.h"
#include "common/text/text.h"
#include "common/types/bridge.h"
#include "common/wire/convert.h"
#include "server/rpc/model_access.h"
#include "server/rpc/trainer_session.h"

namespace psd {
namespace {

/// Bounds the length: a list of zero-size structs may claim any.
Result<std::vector<HeldSamples>> readHeld(capnp::List<schema::HeldSamples>::Reader list) {
  if (list.size() > JoinService::Request::kHeldMax) {
    return Error{ErrorCode::invalidArgument, "samples of " + std::to_string(list.size()) +
                                                 " steps; a trainer holds those of at most " +
                                                 std::to_string(JoinService::Request::kHeldMax)};
  }
  std::vector<HeldSamples> held;
  for (const auto& each : list) {
    held.push_back({Step{each.getStep()}, {each.getEpoch(), each.getBegin(), each.getCount()}});
  }
  return held;
}

Result<JoinService::Request> readRequest(schema::Training::JoinParams::Reader params, const Caller& caller) {
  JoinService::Request request;
  PSD_ASSIGN_OR_RETURN(request.model, wire::readModel(params.getModel()));
  PSD_ASSIGN_OR_RETURN(request.held, readHeld(params.getHeld()));
  request.candidate = {.rank = Rank{params.getRank()},
                       .worldSize = params.getWorldSize(),
                       .host = printable(wire::textIn(params.getHost())),
                       .pid = params.getPid(),
                       .incarnation = params.getIncarnation(),
                       .lastDaemon = params.getDaemon(),
                       .anyRank = params.getAnyRank(),
                       .move = params.getMove(),
                       .codec = printable(wire::textIn(params.getCodec())),
                       .pullCodec = printable(wire::textIn(params.getPullCodec())),
                       .averages = params.getAverages(),
                       .optimizer = std::string(wire::textIn(params.getOptimizer())),
                       .bridges = params.getBridges(),
                       .owner = caller.identity(),
                       .asker = caller.described()};
  if (request.candidate.bridges) {
    request.candidate.rank = kBridgeRank;
    request.candidate.worldSize = 0;
    request.candidate.anyRank = false;
  }
  return request;
}

}  // namespace

kj::Promise<void> TrainingService::join(JoinContext context) {
  auto params = context.getParams();
  auto fail = [context](const Error& error) mutable -> kj::Promise<void> {
    wire::writeError(error, context.getResults().initError());
    return kj::READY_NOW;
  };
  if (auto may = connection_->mayServe(); !may.ok()) return fail(joins_.refused(may.error()));
  if (auto may = connection_->caller().mayTrain(); !may.ok()) return fail(joins_.refused(may.error()));
  context.allowCancellation();  // loading the model may take long
  auto request = readRequest(params, connection_->caller());
  if (!request.ok()) {
    logLine(spdlog::level::warn, {.event = "refused", .peer = connection_->peer(), .limited = true},
            "refused {}: {}", connection_->peer(), request.message());
    return fail(joins_.refused(request.error()));
  }
  context.releaseParams();
  return joins_.join(*std::move(request))
      .then([this, context, fail](Result<JoinedTrainer> joined) mutable -> kj::Promise<void> {
        if (!joined.ok()) return fail(joined.error());
        const uint64_t bytes = accessBytes(*joined->model);
        // If memory is short the session ends, as if its connection had broken.
        auto make = [this, context, joined = *std::move(joined)]() mutable {
          answer(context, std::move(joined));
        };
        return connection_->answerWithin(bytes, std::move(make), [this, fail](const Error& error) mutable {
          fail(joins_.refused(error));
        });
      });
}

void TrainingService::answer(JoinContext context, JoinedTrainer joined) {
  const SessionGrant& grant = joined.grant;
  auto out = context.getResults().initJoined();
  writeAccess(*joined.model, *connection_, out.initAccess());
  out.setLeaseMs(connection_->loop().config().membership.leaseMs);
  out.setDaemon(grant.daemonId);
  out.setResumedState(grant.continuesRun);
  out.setTerm(grant.primaryTerm);
  out.setResumed(grant.resumed);
  out.setRank(grant.trainer.rank.value);
  out.setWorldSize(grant.worldSize);
  out.setMustInitialize(grant.role == ModelInitialization::Role::initialize);
  out.setAttachment(grant.attachment);
  out.setCodec(grant.codec.c_str());
  out.setPullCodec(grant.pullCodec.c_str());
  out.setSession(kj::heap<TrainerSession>(connection_, std::move(joined.service)));
}

kj::Promise<void> TrainingService::attach(AttachContext context) {
  auto fail = [context](const Error& error) mutable -> kj::Promise<void> {
    wire::writeError(error, context.getResults().initError());
    return kj::READY_NOW;
  };
  if (auto may = connection_->mayServe(); !may.ok()) return fail(may.error());
  if (auto may = connection_->caller().mayTrain(); !may.ok()) return fail(may.error());
  auto params = context.getParams();
  const Caller& caller = connection_->caller();
  const AttachRequest request{Rank{params.getRank()}, params.getIncarnation(), params.getAttachment(),
                              caller.identity(), caller.described()};
  context.releaseParams();
  return joins_.attach(request).then(
      [this, context, fail](Result<JoinedTrainer> joined) mutable -> kj::Promise<void> {
        if (!joined.ok()) return fail(joined.error());
        context.getResults().setSession(kj::heap<TrainerSession>(connection_, std::move(joined->service)));
        return kj::READY_NOW;
      });
}

}  // namespace psd
