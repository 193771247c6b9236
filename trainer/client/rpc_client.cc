#include "trainer/client/rpc_client.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "trainer/client/api/failed_call.h"
#include "trainer/client/attempts.h"
#include "trainer/client/operator_calls.h"

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLongConnect{1'000};
constexpr milliseconds kTakeoverPause{25};
constexpr milliseconds kEndReasonTime{2'000};  // for a daemon to report why it ends
constexpr uint64_t kPingCallsMax = 1'000'000;
constexpr uint32_t kPingOutstandingMax = 65'536;

/// The answer to a push that was handed over completely.
class PushAnswerPending final : public Pending<PushInfo>::Impl {
 public:
  explicit PushAnswerPending(std::shared_ptr<PushCall> call) : call_(std::move(call)) {}
  bool done() const override { return call_->done(); }
  bool finished() const override { return call_->settled(); }
  Result<PushInfo> wait() override { return call_->wait(); }

 private:
  const std::shared_ptr<PushCall> call_;
};

/// A call that is not recovered when its connection breaks.
class RoundDuePending final : public Pending<RoundDue>::Impl {
 public:
  RoundDuePending(Link::Future<RoundDue> due, ClientLock& lock) : due_(std::move(due)), lock_(lock) {}
  bool done() const override { return due_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  Result<RoundDue> wait() override {
    if (!lock_.awaitFuture(due_)) return waitEndedError();
    return due_.get();
  }

 private:
  const Link::Future<RoundDue> due_;
  ClientLock& lock_;
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
    if (call->repeated()) {
      call->giveUp();
      return failedCall<PushInfo>({ErrorCode::invalidArgument, "elements were reported more than once"});
    }
    if (call->missing() == 0) {
      call->rowsReady();
      return Pending<PushInfo>(std::make_unique<PushAnswerPending>(call));
    }
    call->giveUp();
    return failedCall<PushInfo>(
        {ErrorCode::invalidArgument, fmt::format("{} elements were not reported", call->missing())});
  }

 private:
  std::shared_ptr<PushCall> call_;  // until finish()
};

/// Checks that the options are allowed for a reader.
Status checkReader(const ClientOptions& options) {
  if (options.codec.empty() || options.codec == "none") return {};
  return {ErrorCode::invalidArgument,
          fmt::format("codec '{}': a reader pushes nothing; leave the codec of gradients out",
                      printable(options.codec))};
}

/// Whether a daemon that answers a reader with this error may serve it later: it is ending and may restart,
/// or it has restarted without a model and awaits one from a trainer.
bool mayReadLater(const Error& error) {
  return error.code == ErrorCode::notReady || error.code == ErrorCode::shuttingDown;
}

/// Why a joined trainer cannot continue at `daemons` other daemons; empty: it can.
std::string whyNotMovable(const ClientOptions& options, const JoinInfo& info, bool onDevice,
                          uint32_t daemons) {
  if (!options.cannotMove.empty()) return options.cannotMove;
  if (onDevice && daemons > 1) {
    return "its arrays are in the memory of a CUDA device, which several daemons do not support";
  }
  if (info.allReduce.timeout.count() > 0) return "it is in an averaging group";
  if (info.local.streams()) return "it exchanges the model in fragments, or with a delay";
  if (!info.local.deltas.empty()) return "it pulls differences to values of this daemon";
  return {};
}

}  // namespace

RpcClient::RpcClient(const ClientOptions& options, std::unique_ptr<Link> first, ClientLock& lock)
    : options_(options),
      lock_(lock),
      links_(std::move(first)),
      notices_(options.onEvent, lock),
      session_(options_, links_, notices_, lock),
      faults_(session_.incarnation()),
      interruptible_(links_.first()) {}

Result<JoinInfo> RpcClient::join(const Membership& membership, const ModelSpec& model,
                                 const std::function<ConstArenaValues()>& initialValues) {
  session_.become({membership, model, initialValues});
  const uint64_t connection = links_.number();
  if (Status status = session_.join(held_, milliseconds(0)); !status.ok()) {
    failIfEnded(status.error());
    PSD_RETURN_IF_ERROR(recover(connection, status.error()));
  }
  return session_.info();
}

void RpcClient::failIfEnded(const Error& error) {
  if (error.code != ErrorCode::interrupted) return;
  links_.fail({ErrorCode::unavailable, session_.server() + ": the wait for its answer to a join was ended"});
}

Result<JoinInfo> RpcClient::observe(const ModelSpec& model) {
  PSD_RETURN_IF_ERROR(checkReader(options_));
  session_.becomeReader(model);
  gaveUp_ = false;  // the caller retries
  for (size_t tried = 1;; tried++) {
    const uint64_t connection = links_.number();
    const Status observed = session_.observe(milliseconds(0));
    if (observed.ok()) break;
    if (observed.error().code != ErrorCode::standby) {
      PSD_RETURN_IF_ERROR(recover(connection, observed.error()));
      break;
    }
    if (tried >= options_.servers.size()) return observed.error();
    session_.startWithNextServer();
    PSD_RETURN_IF_ERROR(session_.connect(options_.connectTimeout));
  }
  return session_.info();
}

bool RpcClient::useDeviceMemory() {
  if (session_.hasTrainer() && session_.info().pullTransport == "cuda") onDevice_ = true;
  return onDevice_;
}

Pending<PullInfo> RpcClient::pull(ArenaValues destination, std::shared_ptr<RowBatch> rows) {
  notices_.reportQueued();
  sendDue();
  const bool rowsOnly = destination.empty() && rows != nullptr;
  if (Status fits = session_.checkValues("the destination of a pull", destination); !fits.ok() && !rowsOnly) {
    return failedCall<PullInfo>(fits.error());
  }
  return Pending<PullInfo>(
      std::make_unique<PullCall>(host(), links_, destination, onDevice_, std::move(rows)));
}

Pending<PushInfo> RpcClient::push(Step step, ConstArenaValues gradient, GradientInfo behind,
                                  const std::vector<Version>& basis, const RowBatch* rows) {
  std::unique_ptr<PartialPush> push = beginPush(step, gradient, behind, basis, rows);
  if (!gradient.empty()) push->ready(0, gradient.size());
  return push->finish();
}

std::unique_ptr<PartialPush> RpcClient::beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                                  const std::vector<Version>& basis,
                                                  std::shared_ptr<const RowBatch> rows) {
  notices_.reportQueued();
  const bool rowsOnly = gradient.empty() && rows != nullptr;
  Status fits = rowsOnly ? Status() : session_.checkValues("a gradient", gradient);
  if (fits.ok() && behind.fragment) fits = session_.checkFragment(*behind.fragment);
  if (fits.ok()) fits = session_.checkHyperparameters(behind.hyperparameters.get());
  if (!fits.ok()) return std::make_unique<FailedPush>(fits.error());
  const auto push = std::make_shared<PushCall>(host(), links_,
                                               PushRequest{.step = step,
                                                           .gradient = gradient,
                                                           .samples = behind.samples,
                                                           .localSteps = behind.localSteps,
                                                           .leadRound = behind.leadRound,
                                                           .fragment = behind.fragment,
                                                           .hyperparameters = behind.hyperparameters,
                                                           .basis = basis,
                                                           .rows = std::move(rows),
                                                           .onDevice = onDevice_});
  pushes_.push_back(push);
  session_.recordStep(step);
  sendDue();
  return std::make_unique<RpcPartialPush>(push);
}

Pending<PullInfo> RpcClient::pullFragment(ArenaValues destination, uint32_t fragment) {
  sendDue();
  Status fits = session_.checkValues("the destination of a pull", destination);
  if (fits.ok()) fits = session_.checkFragment(fragment);
  if (!fits.ok()) return failedCall<PullInfo>(fits.error());
  return Pending<PullInfo>(
      std::make_unique<PullCall>(host(), links_, destination, onDevice_, nullptr, fragment));
}

Pending<RoundDue> RpcClient::fragmentDue(const std::vector<Version>& basis, uint32_t fragment) {
  if (Status fits = session_.checkFragment(fragment); !fits.ok()) return failedCall<RoundDue>(fits.error());
  const auto& shards = session_.info().shards;
  const auto first = std::ranges::find(shards, fragment, &ShardRange::group);
  const size_t at = first == shards.end() ? 0 : first->id.value;
  return dueOf(at < basis.size() ? basis[at] : Version{}, fragment);
}

Pending<RoundDue> RpcClient::dueOf(Version version, uint32_t fragment) {
  return Pending<RoundDue>(
      std::make_unique<RoundDuePending>(links_.first().start<RoundDue>([version, fragment](Channel& channel) {
        return channel.roundDue(version, fragment);
      }),
                                        lock_));
}

Result<FormedGroup> RpcClient::formAveragingGroup(uint64_t after, const AveragingMember& where) {
  for (;;) {
    const uint64_t connection = links_.number();
    const auto answer = links_.first().start<FormedGroup>(
        [after, where](Channel& channel) { return channel.formAveragingGroup(after, where); });
    auto formed =
        notices_.awaitAnswer(answer, "the next averaging group; psd status shows for which trainers");
    if (formed.ok()) {
      faults_.answered();
      return formed;
    }
    PSD_RETURN_IF_ERROR(recover(connection, formed.error()));
  }
}

Result<MachineProgress> RpcClient::progress(bool settled) {
  return links_.first().call<Result<MachineProgress>>(
      lock_, [settled](Channel& channel, kj::Timer&) { return channel.progress(settled); });
}

RpcClient::QuiesceCall RpcClient::startQuiesce(uint64_t move, uint32_t daemons) {
  forgetSettledPushes();
  if (quiesce_ && move_ == move && quiesce_->connection == links_.number()) return *quiesce_;
  move_ = move;
  const std::string cannot = whyNotMovable(options_, session_.info(), onDevice_, daemons);
  quiesce_ = {links_.number(), links_.first().start<DaemonAddresses>([move, cannot](Channel& channel) {
                return channel.quiesce(move, cannot);
              })};
  return *quiesce_;
}

Result<DaemonAddresses> RpcClient::awaitMove(const QuiesceCall& call) {
  const auto places = notices_.awaitAnswer(call.answer, "the move of the model to other daemons");
  if (places.ok()) {
    session_.pendingMove().forget(move_);
    return places;
  }
  const Status back = recover(call.connection, places.error());
  if (!movedTo_.empty()) return movedTo_;
  PSD_RETURN_IF_ERROR(back);
  return DaemonAddresses();
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
  for (auto push = pushes_.begin(); push != pushes_.end(); ++push) {
    const auto overlaps = [&](const auto& older) { return (*push)->overlaps(*older); };
    if ((*push)->sent() || (links_.inUse() > 1 && std::any_of(pushes_.begin(), push, overlaps))) continue;
    (*push)->send();
  }
}

template <class Call>
auto RpcClient::oneAtATime(bool& isCalling, const Call& call) -> decltype(call()) {
  if (!lock_.awaitChange([&isCalling] { return !isCalling; })) return waitEndedError();
  isCalling = true;
  auto answer = call();
  isCalling = false;
  lock_.changed();
  return answer;
}

Result<AssignedSamples> RpcClient::takeSamples(const SamplesRequest& request) {
  return oneAtATime(isTakingSamples_, [&] { return takeSamplesAlone(request); });
}

Result<AssignedSamples> RpcClient::takeSamplesAlone(const SamplesRequest& request) {
  if (samples_) {  // after a wait that was ended: a daemon lets one request of a trainer wait
    const Step step = samples_->step;
    auto assigned = awaitSamples();
    if (assigned.ok() ? step == request.step : assigned.error().code == ErrorCode::interrupted) {
      return assigned;
    }
  }
  for (;;) {
    const uint64_t connection = links_.number();
    samples_ = {request.step, connection, links_.first().start<AssignedSamples>([request](Channel& channel) {
                  return channel.takeSamples(request);
                })};
    auto assigned = awaitSamples();
    if (assigned.ok() || assigned.error().code == ErrorCode::interrupted) return assigned;
    PSD_RETURN_IF_ERROR(recover(connection, assigned.error()));
  }
}

Result<AssignedSamples> RpcClient::awaitSamples() {
  const SamplesCall call = *samples_;
  auto assigned = notices_.awaitAnswer(call.answer, "samples: other trainers hold the rest");
  if (assigned.ok() || assigned.error().code != ErrorCode::interrupted) samples_.reset();
  if (!assigned.ok()) return assigned;
  faults_.answered();
  if (assigned->what == AssignedSamples::What::range) {
    held_[call.step] = {call.step, {assigned->epoch, assigned->begin, assigned->count}};
  }
  return assigned;
}

Status RpcClient::report(Step step, std::span<const NamedValue> values) {
  PSD_RETURN_IF_ERROR(validateReport(values));
  links_.first().post([step, values = std::vector<NamedValue>(values.begin(), values.end())](
                          Channel& channel) { channel.report(step, values); });
  return {};
}

Result<PingInfo> RpcClient::ping(uint64_t calls, uint32_t outstanding) {
  if (calls < 1 || calls > kPingCallsMax || outstanding < 1 || outstanding > kPingOutstandingMax) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("a ping has 1 to {} calls and 1 to {} of them outstanding, not {} and {}",
                             kPingCallsMax, kPingOutstandingMax, calls, outstanding)};
  }
  return links_.first().call<Result<PingInfo>>(
      lock_, [&](Channel& channel, kj::Timer&) { return channel.ping(calls, outstanding); });
}

Result<std::vector<Rank>> RpcClient::waiters() {
  return links_.first().call<Result<std::vector<Rank>>>(
      lock_, [](Channel& channel, kj::Timer&) { return channel.waiters(); });
}

Result<std::vector<std::string>> RpcClient::ask(
    const std::function<kj::Promise<Result<std::string>>(DaemonConnection&)>& work) {
  for (size_t tried = 1;;) {
    const uint64_t connection = links_.number();
    auto answer = links_.first().call<Result<std::string>>(
        lock_, [&work](Channel& channel, kj::Timer&) { return work(channel.connection()); });
    if (answer.ok()) return std::vector<std::string>{*std::move(answer)};
    if (hasEnded()) {
      PSD_RETURN_IF_ERROR(recover(connection, answer.error()));
    } else if (onlyConnects() && answer.error().code == ErrorCode::standby &&
               tried++ < options_.servers.size()) {
      const ClientLock::Alone alone(lock_);
      PSD_RETURN_IF_ERROR(alone.status());
      session_.startWithNextServer();
      PSD_RETURN_IF_ERROR(session_.connect(options_.connectTimeout));
    } else {
      return answer.error();
    }
  }
}

Result<std::vector<std::string>> RpcClient::status() {
  return oneAtATime(isReadingStatus_, [&] { return ask(readStatus); });
}

Result<std::vector<std::string>> RpcClient::set(const std::string& assignment) {
  return ask([&assignment](DaemonConnection& connection) { return setKey(connection, assignment); });
}

Status RpcClient::checkChange(const std::string& assignment) {
  return ask([&assignment](DaemonConnection& connection) { return checkKey(connection, assignment); })
      .status();
}

Result<std::vector<std::string>> RpcClient::checkpoint() { return ask(takeCheckpoint); }

Status RpcClient::awaitOldest() {
  const std::shared_ptr<PushCall> oldest = pushes_.front();
  return oldest->awaitAndRecover();
}

void RpcClient::interrupt() {
  interrupted_ = true;  // set first: code that opens a connection later checks it
  if (options_.resumable) return interruptible_.failAsync(interruptedError());
  interruptible_.leaveAsync(interruptedError());
}

Status RpcClient::leave() {
  while (!interrupted_) {
    const uint64_t connection = links_.number();
    links_.decouple();  // the others lose the session before the answer arrives
    // The answer may take long: it is sent when the departure is on the daemon's disk.
    const auto left = links_.first().call<Status>(lock_, [this](Channel& channel, kj::Timer&) {
      const milliseconds lease(channel.terms().leaseMs);
      if (lease.count() == 0 || lease > options_.silence) channel.watchLiveness(options_.silence);
      return channel.leave();
    });
    if (left.ok()) return {};
    if (Status back = recover(connection, left.error()); !back.ok() && !interrupted_) {
      // The daemon may have processed the goodbye and ended, this trainer having been the last.
      const bool daemonEnds = back.error().code == ErrorCode::shuttingDown;
      return daemonEnds && left.error().code == ErrorCode::unavailable ? Status() : back;
    }
  }
  // Otherwise interrupt() has said goodbye.
  return options_.resumable ? Status(interruptedError()) : Status();
}

Status RpcClient::connect(const ConnectTimeout& timeout) {
  const Clock::time_point deadline = Clock::now() + timeout.time;
  const Clock::time_point longWait = Clock::now() + kLongConnect;
  for (Backoff backoff(session_.incarnation());;) {
    Status status = session_.connect(timeUntil(deadline));
    if (status.ok() || !timeout.retries || !shouldReconnect(status.error())) return status;
    if (Clock::now() >= longWait) {
      lock_.outside([&] {
        reportWait(fmt::format("a psd daemon, {} at most: {}", durationText(timeout.time), status.message()));
      });
    }
    if (remainingUntil(deadline) == milliseconds(0)) {
      return {ErrorCode::unavailable, fmt::format("no psd daemon answered within {}: {}",
                                                  durationText(timeout.time), status.message())};
    }
    if (!lock_.pause(std::min(backoff.next(), remainingUntil(deadline)))) return waitEndedError();
  }
}

bool RpcClient::mayRecover(const Error& error) const {
  if (gaveUp_ || interrupted_ || options_.retryTimeout.count() == 0) return false;
  if (session_.hasTrainer()) return isLost(error);
  const bool ends = error.code == ErrorCode::shuttingDown;
  return (isLost(error) || ends) && !servedByOtherDaemon();
}

bool RpcClient::servedByOtherDaemon() const {
  return !movedTo({}).empty() || (elsewhereCheck_ && elsewhereCheck_());
}

Status RpcClient::rejoin(milliseconds timeout) {
  if (session_.hasTrainer()) return session_.join(held_, timeout);
  return session_.reads() ? session_.observe(timeout) : Status();
}

Status RpcClient::recover(uint64_t broken, const Error& cause) {
  const ClientLock::Alone alone(lock_);
  PSD_RETURN_IF_ERROR(alone.status());
  if (interrupted_) return interruptedError();
  if (!mayRecover(cause)) return cause;
  if (broken != links_.number() && !recovering_) return {};
  recovering_ = true;
  // After a refused call, the reason for the daemon's end may arrive later: the model may have moved.
  if (cause.code == ErrorCode::shuttingDown && !movedTo(kEndReasonTime).empty()) return cause;
  const Clock::time_point start = Clock::now();
  const Clock::time_point since = faults_.broke(start);
  forgetSettledPushes();
  notices_.tell(ClientEvent::What::broke, fmt::format("{}; trying again for up to {}", cause.message,
                                                      durationText(options_.retryTimeout)));
  Status back = reconnect(cause, since + options_.retryTimeout);
  if (!back.ok()) {
    gaveUp_ = back.error().code != ErrorCode::interrupted;  // the next call continues
    return back;
  }
  recovering_ = false;
  faults_.back(Clock::now());
  const size_t resent = resendPushes();
  const auto taken = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
  const char* const how = !session_.hasTrainer() ? "reads continue"
                          : session_.info().initializedModel
                              ? "the daemon had no model, this trainer sent its parameters"
                          : session_.resumed() ? "the session continues"
                                               : "a new session";
  notices_.tell(ClientEvent::What::back,
                fmt::format("back after {}: {}, pushes sent again: {}", durationText(taken), how, resent));
  return {};
}

Status RpcClient::reconnect(const Error& cause, Clock::time_point deadline) {
  if (faults_.again()) {
    links_.fail(cause);
    if (!lock_.pause(std::min(faults_.pause(), remainingUntil(deadline)))) return waitEndedError();
    if (remainingUntil(deadline) == milliseconds(0)) {
      return {ErrorCode::unavailable, fmt::format("{}; it kept breaking for {}, before any call was answered",
                                                  cause.message, durationText(options_.retryTimeout))};
    }
  }
  Backoff backoff(session_.incarnation() + links_.number());
  const auto servers = static_cast<int64_t>(options_.servers.size());
  for (Error last = cause;;) {
    links_.fail(last);
    if (interrupted_) return interruptedError();
    Status status = session_.connect(std::min(timeUntil(deadline), kAttemptTimeout * servers));
    if (status.ok() && interrupted_)
      return interruptedError();  // interrupt() came before there was a connection to fail
    if (const DaemonIdentity& there = session_.identity(); status.ok() && !there.movedTo.empty()) {
      movedTo_ = there.movedTo;
      move_ = there.move;
      return {ErrorCode::sessionEnded,
              session_.server() +
                  ": the model has moved to other daemons while this client was disconnected; restart it"};
    }
    if (status.ok()) status = rejoin(timeUntil(deadline));
    if (status.ok()) return {};
    last = status.error();
    failIfEnded(last);
    const bool reads = !session_.hasTrainer();
    if (reads && servedByOtherDaemon()) return cause;
    // A daemon without memory for its answer may have some later.
    if (!isUnreachable(last) && last.code != ErrorCode::overloaded && !(reads && mayReadLater(last)))
      return last;
    session_.startWithNextServer();
    if (remainingUntil(deadline) == milliseconds(0)) {
      return {ErrorCode::unavailable, fmt::format("{}; could not reconnect within {}: {}", cause.message,
                                                  durationText(options_.retryTimeout), last.message)};
    }
    // One of several servers may be about to take over from another.
    const milliseconds most = options_.servers.size() > 1 ? kTakeoverPause : milliseconds::max();
    if (!lock_.pause(std::min({backoff.next(), remainingUntil(deadline), most}))) return waitEndedError();
  }
}

size_t RpcClient::resendPushes() {
  size_t count = 0;
  for (const std::shared_ptr<PushCall>& push : pushes_) {
    if (push->settled() || !push->sent()) continue;
    push->forgetAnswer();
    count++;
  }
  sendDue();
  return count;
}

}  // namespace psd
