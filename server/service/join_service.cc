#include "server/service/join_service.h"

#include <utility>

#include "server/config/agreed_codecs.h"
#include "server/config/store_rules.h"

namespace psd {
namespace {

/// The control loop's answer to a request.
struct Admission {
  SessionGrant grant;
  ParameterHost::Place place;
};

Result<Admission> place(const Result<SessionGrant>& grant, ParameterHost& host,
                        const std::shared_ptr<EventLoop>& loop) {
  if (!grant.ok()) return grant.error();
  Admission admission{*grant, host.placeOf(grant->process, loop)};
  if (admission.place.pushes) return admission;
  return Error{ErrorCode::sessionEnded, "the trainer was lost while it joined"};
}

Result<JoinedTrainer> serve(Result<Admission> admission, EventLoop& loop, ControlLoop& control) {
  if (!admission.ok()) return admission.error();
  auto service = std::make_unique<TrainerService>(loop, control, admission->grant, admission->place);
  return JoinedTrainer{std::move(admission->grant), std::move(admission->place.model), std::move(service)};
}

}  // namespace

Error JoinService::refused(Error error) {
  loop_->environment().counters.joinsRefused.add();
  return error;
}

Status JoinService::agree(Candidate& candidate) const {
  const DaemonConfig& config = loop_->config();
  PSD_ASSIGN_OR_RETURN(const AgreedCodecs agreed,
                       agreeOnCodecs(config, candidate.codec, candidate.pullCodec));
  if (allReduceOf(config.groups) && !candidate.averages) {
    return {ErrorCode::invalidArgument,
            "policy " + describePolicies(config.groups) +
                ": trainers average gradients among themselves, which this one "
                "does not support; psd-trainer of the preset release, with a model of its own, does"};
  }
  candidate.ownCodec = !candidate.codec.empty();
  candidate.ownPullCodec = !candidate.pullCodec.empty();
  candidate.codec = agreed.push->spec();
  candidate.pullCodec = agreed.pull->spec();
  return {};
}

Status JoinService::mayBridge(const ModelSpec& model) const {
  if (!model.tables.empty()) {
    return {
        ErrorCode::invalidArgument,
        "a bridge averages tensors; this model has embedding tables, whose rows are this machine's alone"};
  }
  for (const GroupConfig& group : loop_->config().groups) {
    if (group.optimizer.derivesWeights()) {
      return {ErrorCode::invalidArgument,
              "optimizer " + group.optimizer.describe() +
                  ": a bridge adds to the parameters between updates, and they are a function of this "
                  "optimizer's state; expected another one in this machine's daemon"};
    }
    if (group.policy.traits.differences) continue;
    return {ErrorCode::invalidArgument,
            "policy " + describePolicies(loop_->config().groups) +
                ": a bridge adds to the parameters between updates, which rounds would count as their own; "
                "expected hogwild, locked or bounded_staleness in this machine's daemon"};
  }
  return {};
}

kj::Promise<Result<JoinedTrainer>> JoinService::join(Request request) {
  using Answer = Result<JoinedTrainer>;
  if (loop_->config().servesOnlyVersions()) return Answer(refused(storeHasNoModel()));
  if (request.candidate.bridges) {
    if (Status may = mayBridge(request.model); !may.ok()) return Answer(refused(may.error()));
  }
  if (Status agreed = agree(request.candidate); !agreed.ok()) return Answer(refused(agreed.error()));
  if (!request.held.empty()) control_.samplesAreAssigned();
  return control_
      .run([request = std::move(request), loop = loop_](
               Coordinator& coordinator, ParameterHost& host) mutable -> kj::Promise<Result<Admission>> {
        const Candidate& candidate = request.candidate;
        if (Status fits = host.checkCodec(candidate.codec, candidate.optimizer); !fits.ok()) {
          return Result<Admission>(fits.error());
        }
        const bool sendsOptimizer =
            !candidate.optimizer.empty() && takesTrainersOptimizer(host.config().groups);
        return coordinator
            .join(std::move(request.candidate), std::move(request.held), std::move(request.model))
            .then([&host, loop = std::move(loop), sendsOptimizer](const Result<SessionGrant>& grant) {
              Result<Admission> placed = place(grant, host, loop);
              if (placed.ok() && sendsOptimizer) host.noteOptimizer(grant->process);
              return placed;
            });
      })
      .then([this](Result<Admission> admission) -> Answer {
        if (!admission.ok()) return refused(admission.error());
        return serve(std::move(admission), *loop_, control_);
      });
}

kj::Promise<Result<JoinedTrainer>> JoinService::attach(const AttachRequest& request) {
  return control_
      .run([request, loop = loop_](Coordinator& coordinator, ParameterHost& host) {
        return place(coordinator.attach(request), host, loop);
      })
      .then([this](Result<Admission> admission) { return serve(std::move(admission), *loop_, control_); });
}

Result<std::shared_ptr<const Codec>> JoinService::agreeWithReader(std::string_view pullCodec) const {
  if (pullCodec.empty()) return std::shared_ptr<const Codec>();
  auto codec = loop_->config().codecs.pull.choose(pullCodec);
  if (!codec.ok()) return Error{codec.error().code, "pulls: " + codec.message()};
  return (*codec)->name() == "none" ? nullptr : *std::move(codec);
}

kj::Promise<Result<std::shared_ptr<ServedModel>>> JoinService::observe(ModelSpec model) {
  return control_.run(
      [model = std::move(model)](Coordinator& coordinator,
                                 ParameterHost& host) -> Result<std::shared_ptr<ServedModel>> {
        if (const auto why = coordinator.serving().rejection(ServingState::Peer::reader)) return *why;
        return host.observe(model);
      });
}

}  // namespace psd
