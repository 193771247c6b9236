#include "trainer/client/rpc_client.h"

#include "common/os/random_id.h"
#include "common/types/model_layout.h"

namespace psd {
namespace {

using std::chrono::milliseconds;

/// A result that is there already.
template <class T>
Pending<T> failed(Error error) {
  class Failed final : public Pending<T>::Impl {
   public:
    explicit Failed(Error error) : error_(std::move(error)) {}
    bool done() const override { return true; }
    Result<T> wait() override { return error_; }

   private:
    const Error error_;
  };
  return Pending<T>(std::make_unique<Failed>(std::move(error)));
}

/// The answer to a push that sends no more by itself.
class PushAnswerPending final : public Pending<PushInfo>::Impl {
 public:
  explicit PushAnswerPending(std::shared_ptr<PushCall> call) : call_(std::move(call)) {}
  bool done() const override { return call_->done(); }
  Result<PushInfo> wait() override { return call_->wait(); }

 private:
  const std::shared_ptr<PushCall> call_;
};

class RpcPartialPush final : public PartialPush {
 public:
  explicit RpcPartialPush(std::shared_ptr<PushCall> call) : call_(std::move(call)) {}
  ~RpcPartialPush() override {
    if (call_) call_->giveUp();  // the caller may free the gradient now
  }
  void ready(uint64_t begin, uint64_t count) override { call_->ready(begin, count); }
  Pending<PushInfo> finish() override {
    const std::shared_ptr<PushCall> call = std::move(call_);
    if (call->missing() == 0) return Pending<PushInfo>(std::make_unique<PushAnswerPending>(call));
    call->giveUp();
    return failed<PushInfo>(
        {ErrorCode::invalidArgument, std::to_string(call->missing()) + " elements were not reported"});
  }

 private:
  std::shared_ptr<PushCall> call_;  // until finish()
};

/// A push that was wrong from the start.
class FailedPush final : public PartialPush {
 public:
  explicit FailedPush(Pending<PushInfo> answer) : answer_(std::move(answer)) {}
  void ready(uint64_t, uint64_t) override {}
  Pending<PushInfo> finish() override { return std::move(answer_); }

 private:
  Pending<PushInfo> answer_;
};

}  // namespace

RpcClient::RpcClient(const ClientOptions& options, std::unique_ptr<Link> first)
    : options_(options), incarnation_(drawId()), links_(std::move(first)), interruptible_(links_.first()) {}

Result<JoinInfo> RpcClient::join(const Membership& membership, const ModelSpec& model,
                                 const std::function<std::span<const float>()>& initialValues) {
  trainer_ = Trainer{membership, model, initialValues};
  const uint64_t connection = links_.number();
  if (Status status = joinOnce(milliseconds(0)); !status.ok())
    PSD_RETURN_IF_ERROR(recover(connection, status.error()));
  return info_;
}

Result<JoinAnswer> RpcClient::askToJoin(const JoinRequest& request, milliseconds timeout) {
  const auto join = [this, &request](Channel& channel) { return channel.join(request, trainer_->model); };
  // The channel itself notices a daemon that falls silent.
  if (timeout.count() == 0)
    return outwait(first().start<JoinAnswer>(join), "the daemon's answer to the join");
  return first().call<Result<JoinAnswer>>([&](Channel& channel, kj::Timer& timer) {
    return timer.timeoutAfter(timeout.count() * kj::MILLISECONDS, join(channel));
  });
}

Status RpcClient::joinOnce(milliseconds timeout) {
  // Who comes back asks for what was agreed before, so that what was sent can be sent again as it was.
  const bool before = joined_.daemon != 0;
  JoinRequest request{trainer_->membership,
                      incarnation_,
                      joined_.daemon,
                      {before ? info_.codec : options_.codec, options_.pullCodec},
                      {}};
  for (const auto& [step, held] : held_) request.held.push_back(held);
  PSD_ASSIGN_OR_RETURN(joined_, askToJoin(request, timeout));
  trainer_->membership = {joined_.rank, joined_.worldSize};  // to come back to
  elements_ = ModelLayout(trainer_->model).totalElements();
  JoinInfo info = describe();
  if (before && info.local != info_.local) {
    return {
        ErrorCode::invalidArgument,
        "the daemon came back with policy '" + info.policy +
            "', under which trainers take other steps by themselves than before; start this trainer anew"};
  }
  info_ = std::move(info);
  info_.rank = joined_.rank;
  info_.worldSize = joined_.worldSize;
  StartRole role = StartRole::bringValues;
  if (!joined_.mustInitialize) {
    const auto told = first().start<StartRole>([](Channel& channel) { return channel.awaitModel(); });
    PSD_ASSIGN_OR_RETURN(role, outwait(told, "the model's initial values, which another trainer brings"));
  }
  if (role == StartRole::bringValues) {
    const std::span<const float> values = trainer_->initialValues();
    PSD_RETURN_IF_ERROR(checkSize("the initial values", values.size()));
    PSD_RETURN_IF_ERROR(first().call<Result<PushInfo>>(
        [&](Channel& channel, kj::Timer&) { return channel.bringValues(values); }));
    info_.broughtInitialValues = true;
  }
  return attachOthers(timeout);
}

Result<JoinInfo> RpcClient::observe(const ModelSpec& model) {
  const auto told = first().start<ModelSpec>([&model](Channel& channel) { return channel.observe(model); });
  PSD_ASSIGN_OR_RETURN(const ModelSpec served, outwait(told, "the daemon's answer"));
  elements_ = ModelLayout(served).totalElements();
  return describe();
}

JoinInfo RpcClient::describe() {
  links_.useFirst();
  JoinInfo info;
  first().look([&](Channel& channel) {
    const SessionTerms& terms = channel.terms();
    info.policy = terms.policy;
    info.local = terms.localSteps;
    info.device = terms.device;
    info.shardCount = static_cast<uint32_t>(terms.plan.shards.size());
    info.pullTransport = channel.transports().pullName();
    info.pushTransport = channel.transports().pushName();
    if (terms.codec) info.codec = terms.codec->spec();
    if (terms.pullCodec && !links_.sharedModel()) info.pullCodec = terms.pullCodec->spec();
  });
  info.serverVersion = serverVersion_;
  return info;
}

bool RpcClient::useDeviceMemory() {
  if (info_.pullTransport == "cuda") onDevice_ = true;
  return onDevice_;
}

Pending<PullInfo> RpcClient::pull(std::span<float> destination) {
  sendDue();
  if (Status size = checkSize("the destination of a pull", destination.size()); !size.ok()) {
    return failed<PullInfo>(size.error());
  }
  return Pending<PullInfo>(std::make_unique<PullCall>(host(), links_, destination, onDevice_));
}

Pending<PushInfo> RpcClient::push(Step step, std::span<const float> gradient, uint32_t samples,
                                  const std::vector<Version>& basis) {
  std::unique_ptr<PartialPush> push = beginPush(step, gradient, samples, basis);
  push->ready(0, gradient.size());
  return push->finish();
}

std::unique_ptr<PartialPush> RpcClient::beginPush(Step step, std::span<const float> gradient,
                                                  uint32_t samples, const std::vector<Version>& basis) {
  if (Status size = checkSize("a gradient", gradient.size()); !size.ok()) {
    return std::make_unique<FailedPush>(failed<PushInfo>(size.error()));
  }
  const auto push = std::make_shared<PushCall>(
      host(), links_,
      PushRequest{
          .step = step, .gradient = gradient, .samples = samples, .basis = basis, .onDevice = onDevice_});
  pushes_.push_back(push);
  sendDue();
  return std::make_unique<RpcPartialPush>(push);
}

void RpcClient::forgetSettledPushes() {
  pushes_.remove_if([this](const auto& push) {
    if (!push->settled()) return false;
    push->conclude();
    held_.erase(push->step());
    return true;
  });
}

void RpcClient::sendDue() {
  forgetSettledPushes();
  for (const auto& push : pushes_) {
    if (!push->sent()) push->send();
    if (links_.inUse() > 1) return;
  }
}

Result<DealtSamples> RpcClient::takeSamples(const SamplesRequest& request) {
  for (;;) {
    const uint64_t connection = links_.number();
    const auto told =
        first().start<DealtSamples>([request](Channel& channel) { return channel.takeSamples(request); });
    auto dealt = outwait(told, "samples: others have what is left");
    if (dealt.ok()) {
      if (dealt->what == DealtSamples::What::range) {
        held_[request.step] = {request.step, {dealt->epoch, dealt->begin, dealt->count}};
      }
      return dealt;
    }
    PSD_RETURN_IF_ERROR(recover(connection, dealt.error()));
  }
}

Result<PingInfo> RpcClient::ping(uint64_t calls, uint32_t outstanding) {
  return first().call<Result<PingInfo>>(
      [&](Channel& channel, kj::Timer&) { return channel.ping(calls, outstanding); });
}

void RpcClient::outlastOldest() {
  const std::shared_ptr<PushCall> oldest = pushes_.front();
  oldest->outlast();
}

void RpcClient::interrupt() {
  interrupted_ = true;  // before: whoever opens a connection after this looks
  interruptible_.leaveSoon(interruptedError());
}

Status RpcClient::leave() {
  while (!interrupted_) {
    const uint64_t connection = links_.number();
    links_.standAlone();  // to the others the session is over before the answer is here
    // The answer may take long: it comes when the departure is on the daemon's disk.
    const auto left = first().call<Status>([this](Channel& channel, kj::Timer&) {
      const milliseconds lease(channel.terms().leaseMs);
      if (lease.count() == 0 || lease > options_.silence) channel.watchSilence(options_.silence);
      return channel.leave();
    });
    if (left.ok()) return {};
    if (Status back = recover(connection, left.error()); !back.ok() && !interrupted_) {
      // The daemon may have heard of the leave and ended, this trainer having been the last.
      const bool daemonEnds = back.error().code == ErrorCode::shuttingDown;
      return daemonEnds && left.error().code == ErrorCode::unavailable ? Status() : back;
    }
  }
  return {};  // interrupt() has said it
}

Status RpcClient::checkSize(const char* what, size_t elements) const {
  if (elements_ != 0 && elements == elements_) return {};
  return {ErrorCode::invalidArgument, std::string(what) + " has " + std::to_string(elements) +
                                          " elements; the model's layout has " + std::to_string(elements_)};
}

}  // namespace psd
