#include "trainer/executor/daemon_session.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "trainer/client/attempts.h"

namespace psd {
namespace {

// How long a call that waits for other trainers may run after its own trainer has disconnected. Then the call
// is interrupted and the daemon sees a broken connection, so that other trainers do not wait long for this
// one.
constexpr std::chrono::milliseconds kInterruptDelay{2'000};

/// Whether a step under these policies may wait for another trainer's step. `policies`: the names, as the
/// daemon reports them.
bool mayWaitForTrainers(std::string_view policies) {
  return policies.find("sync") != std::string_view::npos ||
         policies.find("bounded_staleness") != std::string_view::npos;
}

/// Makes an error of a push final (not isRetryable()): a push that the daemon rejects because a table is full
/// would be rejected again if it were recomputed. For a trainer with its own client this is final, too.
Error asFinal(Error error) {
  if (error.code == ErrorCode::overloaded) error.code = ErrorCode::invalidArgument;
  return error;
}

Error notJoined() { return {ErrorCode::notReady, "the trainer has not joined"}; }

}  // namespace

DaemonSession::DaemonSession(ExecutionModel& model, FloatArrays& arrays, ModelLocation& places,
                             const ExecutorConfig& config, ClientOptions options,
                             std::shared_ptr<const void> place)
    : sessionSlot_(std::move(place)),
      model_(model),
      arrays_(arrays),
      location_(places),
      mode_(config.weights),
      exclusive_(config.exclusive),
      options_(std::move(options)),
      thread_(1, TaskThreads::kUniformAge) {}

bool DaemonSession::end() {
  if (thread_.stopWithin(std::chrono::milliseconds(0))) return true;
  const auto now = std::chrono::steady_clock::now();
  if (!endingSince_) endingSince_ = now;
  const std::lock_guard hold(mutex_);
  const bool connecting = !client_;  // the daemon does not know of the trainer yet
  if (!ending_ && (connecting || now - *endingSince_ >= kInterruptDelay)) {
    ending_ = true;
    if (client_) client_->interrupt();
  }
  return false;
}

kj::Promise<Result<JoinInfo>> DaemonSession::join(const Membership& membership) {
  return thread_.run<JoinInfo>({}, [this, membership] { return joinNow(membership); });
}

Result<JoinInfo> DaemonSession::joinNow(const Membership& membership) {
  ClientOptions options = options_;
  options.servers = location_.servers();
  options.onMove = [this](const auto& from, const auto& to) { location_.moved(from, to); };
  for (size_t tried = 1;; tried++) {
    Result<JoinInfo> info = joinWith(options, membership);
    const bool isStandby = !info.ok() && info.error().code == ErrorCode::standby;
    if (!isStandby || tried >= options.servers.size()) return info;
    std::rotate(options.servers.begin(), options.servers.begin() + 1,
                options.servers.end());  // another server is the primary
  }
}

Result<std::shared_ptr<Client>> DaemonSession::connect(const ClientOptions& options) {
  std::chrono::milliseconds left = options.connectTimeout;
  for (ClientOptions attempt = options;;) {
    attempt.connectTimeout = std::min(left, kAttemptTimeout);
    left -= attempt.connectTimeout;
    auto client = Client::connect(attempt);
    const std::lock_guard hold(mutex_);
    if (ending_) return Error{ErrorCode::interrupted, "the trainer has disconnected"};
    if (client.ok()) return client_ = *std::move(client);
    if (!shouldReconnect(client.error())) return client.error();
    if (left.count() > 0) continue;
    if (attempt.connectTimeout == options.connectTimeout) return client.error();
    return Error{client.error().code,
                 fmt::format("tried for {}: {}", durationText(options.connectTimeout), client.message())};
  }
}

Result<JoinInfo> DaemonSession::joinWith(const ClientOptions& options, const Membership& membership) {
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Client> client, connect(options));
  PSD_ASSIGN_OR_RETURN(JoinInfo info, client->join(membership, model_.spec(), [this] {
    initialValues_ = arrays_.newest();
    if (!initialValues_) initialValues_ = model_.initialValues();
    return std::span<const float>(initialValues_.get(), arrays_.elements());
  }));
  initialValues_ = nullptr;
  const Status fits = checkJoined(info);
  if (fits.ok()) return info;
  static_cast<void>(client->leave());
  return fits.error();
}

Status DaemonSession::checkJoined(const JoinInfo& info) const {
  if (info.local.period != 0) {
    return {ErrorCode::invalidArgument,
            "under policy " + info.policy +
                " trainers update parameters of their own, which an executor's trainers do "
                "not have: expected hogwild, locked, bounded_staleness or sync"};
  }
  if (exclusive_ && mayWaitForTrainers(info.policy)) {
    return {ErrorCode::invalidArgument,
            "\"exclusive\" cannot be combined with policy " + info.policy +
                ", under which trainers wait for each other's steps: expected hogwild or locked"};
  }
  if (mode_ == WeightsMode::live && arrays_.elements() > 0 && client_->view().empty()) {
    return {ErrorCode::invalidArgument,
            fmt::format("\"weights\": \"live\" needs the daemon's memory, which only policy hogwild shares, "
                        "with peers at "
                        "a Unix socket; the policy is {}, and pulls use {}: expected \"stashed\"",
                        info.policy, info.pullTransport)};
  }
  return {};
}

kj::Promise<Result<PulledWeights>> DaemonSession::weights(Inputs inputs, bool training) {
  return thread_.run<PulledWeights>(
      {}, [this, inputs = std::move(inputs), training] { return weightsNow(*inputs, training); });
}

Result<std::shared_ptr<ContextRows>> DaemonSession::rowsOf(const std::vector<NamedTensor>& inputs,
                                                           bool training) {
  if (model_.spec().tables.empty()) return std::shared_ptr<ContextRows>();
  // The lookup holds a second copy of the inputs.
  PSD_ASSIGN_OR_RETURN(const ByteBudget::Lease copy, arrays_.lease(totalBytes(inputs), "inputs"));
  PSD_ASSIGN_OR_RETURN(auto lookups, model_.lookUp(inputs, training));
  return ContextRows::make(client_->makeRowBatch(), std::move(lookups), arrays_);
}

Result<PulledWeights> DaemonSession::weightsNow(const std::vector<NamedTensor>& inputs, bool training) {
  if (!client_) return notJoined();
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<ContextRows> rows, rowsOf(inputs, training));
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<float> fresh, arrays_.take());
  // Also for live weights, since the pull returns the versions.
  PSD_ASSIGN_OR_RETURN(
      PullInfo info,
      client_->pull(std::span(fresh.get(), arrays_.elements()), rows ? &rows->batch() : nullptr).wait());
  PulledWeights pulled{arrays_.share(info.versions, std::move(fresh)), std::move(info.versions),
                       std::move(rows)};
  if (mode_ == WeightsMode::stashed || arrays_.elements() == 0) return pulled;
  const std::span<const float> view = client_->view();
  if (view.empty()) {
    return Error{ErrorCode::invalidArgument,
                 "the daemon's current policy does not share its memory; "
                 "\"weights\": \"live\" needs hogwild"};
  }
  pulled.values = Weights(shared_from_this(), view.data());
  return pulled;
}

kj::Promise<Result<PushInfo>> DaemonSession::push(Step step, std::vector<std::shared_ptr<float>> gradients,
                                                  std::shared_ptr<const ContextRows> rows, uint32_t samples,
                                                  std::vector<Version> basis) {
  return thread_.run<PushInfo>({},
                               [this, step, gradients = std::move(gradients), rows = std::move(rows), samples,
                                basis = std::move(basis)]() -> Result<PushInfo> {
                                 if (!client_) return notJoined();
                                 float* const sum = gradients.front().get();
                                 for (size_t k = 1; k < gradients.size(); k++) {
                                   const float* const part = gradients[k].get();
                                   for (uint64_t i = 0; i < arrays_.elements(); i++) sum[i] += part[i];
                                 }
                                 auto pushed = client_
                                                   ->push(step, std::span(sum, arrays_.elements()), samples,
                                                          basis, rows ? &rows->batch() : nullptr)
                                                   .wait();
                                 if (!pushed.ok()) return asFinal(pushed.error());
                                 return pushed;
                               });
}

kj::Promise<Result<bool>> DaemonSession::leave() {
  return thread_.run<bool>({}, [this]() -> Result<bool> {
    if (!client_) return true;
    PSD_RETURN_IF_ERROR(client_->leave());
    return true;
  });
}

}  // namespace psd
