#include "trainer/executor/executor_service.h"

#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/config/json_file.h"
#include "common/text/text.h"
#include "common/wire/convert.h"
#include "trainer/executor/remote/tensor_wire.h"

namespace psd {
namespace {

constexpr size_t kPeerBytesMax = 80;

/// The calls of a joined trainer. Shares its session with the connection, which closes it.
class RemoteTrainerService final : public schema::RemoteTrainer::Server {
 public:
  RemoteTrainerService(std::shared_ptr<ExecutionSession> session, std::weak_ptr<PeerSession> peer)
      : session_(std::move(session)), peer_(std::move(peer)) {}

 protected:
  kj::Promise<void> forward(ForwardContext context) override {
    auto params = context.getParams();
    ForwardCall call{params.getContext(), {}, params.getTraining(), params.getPriority()};
    auto inputs = wire::readTensors(params.getInputs());
    if (!inputs.ok()) return refuse(context, inputs.error());
    call.inputs = *std::move(inputs);
    context.releaseParams();
    const uint64_t id = call.context;
    const bool training = call.training;
    auto forward = session_->forward(kj::mv(call));
    return forward.then(
        [session = session_, peer = peer_, context, id, training](Result<ForwardDone> done) mutable {
          if (const Status may = checkMayAnswer(peer); done.ok() && !may.ok()) {
            if (training) session->drop(id);
            done = may.error();
          }
          if (done.ok() && done->pass->outputs().size() > wire::kTensorListMax) {
            if (training) session->drop(id);
            done = tooMany("outputs", done->pass->outputs().size(), "have the module give fewer");
          }
          auto results = context.getResults();
          wire::writeStatus(done.status(), results.initStatus());
          if (!done.ok()) return;
          const std::vector<NamedTensor>& outputs = done->pass->outputs();
          wire::writeTensors(outputs, results.initOutputs(static_cast<uint32_t>(outputs.size())));
          auto versions = results.initVersions(static_cast<uint32_t>(done->versions.size()));
          for (uint32_t i = 0; i < versions.size(); i++) versions.set(i, done->versions[i].value);
        });
  }

  kj::Promise<void> backward(BackwardContext context) override {
    auto params = context.getParams();
    auto gradients = wire::readTensors(params.getOutputGradients());
    if (!gradients.ok()) return refuse(context, gradients.error());
    const uint64_t id = params.getContext();
    const Step step{params.getThenStep()};
    const uint32_t samples = params.getSamples();
    auto computed = session_->backward(id, *kj::mv(gradients), params.getPriority());
    context.releaseParams();
    return computed
        .then([session = session_, id, step, samples](Result<bool> done) -> kj::Promise<Result<PushInfo>> {
          if (!done.ok()) return Result<PushInfo>(done.error());
          if (step == Step{0}) return Result<PushInfo>(PushInfo());
          return session->step(id, step, samples);
        })
        .then([context](Result<PushInfo> pushed) mutable { writeStep(pushed, context.getResults()); });
  }

  kj::Promise<void> gradients(GradientsContext context) override {
    auto params = context.getParams();
    if (params.getNames().size() > wire::kTensorListMax) {
      return refuse(context, tooMany("names", params.getNames().size(), "name fewer"));
    }
    std::vector<std::string> names;
    for (const auto name : params.getNames()) names.emplace_back(wire::textIn(name));
    if (const Status may = checkMayAnswer(peer_); !may.ok()) return refuse(context, may.error());
    const auto gradients = session_->gradients(params.getContext(), names);
    if (!gradients.ok()) return refuse(context, gradients.error());
    if (gradients->size() > wire::kTensorListMax) {
      return refuse(context, tooMany("gradients", gradients->size(), "name fewer parameters"));
    }
    auto results = context.getResults();
    results.initStatus().setOk();
    wire::writeTensors(*gradients, results.initGradients(static_cast<uint32_t>(gradients->size())));
    return kj::READY_NOW;
  }

  kj::Promise<void> step(StepContext context) override {
    auto params = context.getParams();
    std::vector<uint64_t> also;
    for (const uint64_t other : params.getAlso()) also.push_back(other);
    return session_->step(params.getContext(), Step{params.getStep()}, params.getSamples(), also)
        .then([context](Result<PushInfo> pushed) mutable { writeStep(pushed, context.getResults()); });
  }

  kj::Promise<void> drop(DropContext context) override {
    session_->drop(context.getParams().getContext());
    context.getResults().initStatus().setOk();
    return kj::READY_NOW;
  }

  kj::Promise<void> leave(LeaveContext context) override {
    return session_->leave().then([context](Result<bool> left) mutable {
      wire::writeStatus(left.status(), context.getResults().initStatus());
    });
  }

 private:
  static Status checkMayAnswer(const std::weak_ptr<PeerSession>& peer) {
    const std::shared_ptr<PeerSession> there = peer.lock();
    return there ? there->checkMayAnswer() : Status(ErrorCode::unavailable, "the connection is gone");
  }
  static Error tooMany(const char* what, size_t count, const char* instead) {
    return {ErrorCode::invalidArgument,
            fmt::format("{} {}; one message has {} at most: {}", count, what, wire::kTensorListMax, instead)};
  }
  template <class Context>
  static kj::Promise<void> refuse(Context& context, const Error& error) {
    wire::writeError(error, context.getResults().initStatus().initError());
    return kj::READY_NOW;
  }
  template <class Results>
  static void writeStep(const Result<PushInfo>& pushed, Results results) {
    wire::writeStatus(pushed.status(), results.initStatus());
    if (!pushed.ok()) return;
    results.setOutcome(static_cast<schema::PushOutcome>(pushed->outcome));
    results.setStaleness(pushed->staleness);
  }

  const std::shared_ptr<ExecutionSession> session_;
  const std::weak_ptr<PeerSession> peer_;  // expired: the connection is gone
};

}  // namespace

Status ExecutorService::greeted() const {
  if (greeted_) return {};
  return {ErrorCode::protocolMismatch, "the first call must be hello"};
}

kj::Promise<void> ExecutorService::hello(HelloContext context) {
  auto params = context.getParams();
  auto results = context.getResults();
  if (params.getProtocolVersion() != schema::EXECUTOR_PROTOCOL_VERSION) {
    wire::writeError(
        {ErrorCode::protocolMismatch,
         fmt::format("protocol version {}; this executor, psd " PSD_VERSION ", speaks version {}",
                     params.getProtocolVersion(), +schema::EXECUTOR_PROTOCOL_VERSION)},
        results.initStatus().initError());
    return kj::READY_NOW;
  }
  if (!greeted_) peer_ += " (" + printable(wire::textIn(params.getPeer()), kPeerBytesMax) + ")";
  greeted_ = true;
  onHello_();
  results.initStatus().setOk();
  results.setModule(executor_.model().spec().name.c_str());
  const std::vector<ColumnSpec>& inputs = executor_.model().inputs();
  wire::writeColumns(inputs, results.initInputs(static_cast<uint32_t>(inputs.size())));
  wire::writeLoss(executor_.model().loss(), results.initLoss());
  results.setExclusive(executor_.config().exclusive);
  results.setContexts(executor_.config().contexts);
  results.setQueue(executor_.config().queue);
  results.setTables(!executor_.model().spec().tables.empty());
  results.setVersion(PSD_VERSION);
  results.setMessageBytes(executor_.config().messageBytes);
  results.setIdleTimeoutMs(static_cast<uint32_t>(executor_.config().silence.count()));
  return kj::READY_NOW;
}

kj::Promise<void> ExecutorService::join(JoinContext context) {
  auto params = context.getParams();
  const auto refuse = [&context](const Error& error) -> kj::Promise<void> {
    wire::writeError(error, context.getResults().initStatus().initError());
    return kj::READY_NOW;
  };
  if (const Status may = greeted(); !may.ok()) return refuse(may.error());
  const std::shared_ptr<PeerSession> own = session_.lock();
  if (!own) return refuse({ErrorCode::unavailable, "the connection is gone"});
  if (own->isOpen()) return refuse({ErrorCode::invalidArgument, "this connection has joined already"});
  if (params.getIncarnation() == 0) return refuse({ErrorCode::invalidArgument, "incarnation: must not be 0"});
  auto rowsAt = wire::readDaemonNumbers(params.getRowsAt());
  if (!rowsAt.ok()) return refuse(rowsAt.error());
  const auto session = std::make_shared<ExecutionSession>(executor_, peer_, own->owner);
  own->begin(session);
  const Membership membership{Rank{params.getRank()}, params.getWorldSize(), params.getAnyRank()};
  return session->join(membership, params.getIncarnation(), *kj::mv(rowsAt))
      .then([context, session, peer = session_](Result<JoinInfo> joined) mutable {
        auto results = context.getResults();
        wire::writeStatus(joined.status(), results.initStatus());
        if (!joined.ok()) return;
        results.setTrainer(kj::heap<RemoteTrainerService>(session, peer));
        results.setRank(joined->rank.value);
        results.setWorldSize(joined->worldSize);
        results.setPolicy(joined->policy.c_str());
        results.setDevice(joined->device.c_str());
        results.setShards(joined->shardCount);
        results.setDaemons({joined->daemons.data(), joined->daemons.size()});
      });
}

kj::Promise<void> ExecutorService::status(StatusContext context) {
  Status may = greeted();
  if (const auto own = session_.lock(); may.ok() && own) may = own->checkMayAnswer();
  wire::writeStatus(may, context.getResults().initStatus());
  if (may.ok()) context.getResults().setJson(jsonText(statusJson(executor_.status())).c_str());
  return kj::READY_NOW;
}

}  // namespace psd
