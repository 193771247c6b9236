#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/api/client.h"
#include "trainer/executor/remote/executor_connection.h"
#include "trainer/executor/remote/loss_result.h"

namespace psd {

struct RemoteStepsOptions {
  std::string executor;  ///< "tcp://host:port", "tls://host:port" or "unix:///path"
  TlsFiles tls;          ///< for an executor at tls://
  std::string program = "psd-trainer";
  /// How long to keep trying to reach the executor and, during the first join, its daemon; 0: one attempt.
  std::chrono::milliseconds connectTimeout{30'000};
  /// How long to retry when the connection breaks or the executor or its daemon dies or is overloaded; 0: the
  /// first fault is final. Applies to a step as a whole: passes that succeed meanwhile do not extend it.
  std::chrono::milliseconds retryTimeout{0};
  /// Whether to continue if the daemon has lost rows of embedding tables that this trainer has pushed; these
  /// rows are then reinitialized. Otherwise rejoining fails (modelMismatch).
  bool acceptLostRows = false;
  /// Called on the trainer's thread when a fault delays it and when it has recovered; may be null.
  std::function<void(const ClientEvent&)> onEvent;
};

/// Training steps at an executor, one at a time, with recovery from faults: a step whose connection broke is
/// recomputed from newer parameters and pushed with the same step number, which the daemon applies once.
/// Owned by one thread.
class RemoteSteps {
 public:
  /// Connects; retries until connectTimeout while the executor is unreachable.
  static Result<std::unique_ptr<RemoteSteps>> connect(RemoteStepsOptions options);

  const RemoteModule& module() const { return module_; }
  const std::string& executor() const { return options_.executor; }
  Result<RemoteJoin> join(const Membership& membership);

  /// The forward pass of a training step, and its loss, which is returned. Both are kept for step().
  Result<double> forward(std::vector<NamedTensor> inputs, RemoteLoss loss) {
    std::vector<BatchPart> whole;  // a list in braces would copy it
    whole.push_back({std::move(inputs), std::move(loss)});
    return forward(std::move(whole));
  }
  /// The forward pass of a training step whose batch is divided into parts, at least one and not more than
  /// checkParts() allows; returns the loss. With several parts, their forward and backward passes overlap,
  /// and their losses are computed on another thread, one at a time.
  Result<double> forward(std::vector<BatchPart> parts);
  /// The backward pass, if it has not run yet, and the step, for the last forward(). `step` increases with
  /// every call. If the daemon received slices of the step before a fault, the step counts as late, and
  /// nothing more of it is applied.
  Result<StepResult> step(Step step, uint32_t samples);
  /// The outputs of a forward pass without training; keeps no context.
  Result<std::vector<NamedTensor>> outputs(const std::vector<NamedTensor>& inputs);
  Status leave();

  /// Makes the call in progress and all later ones fail (interrupted). From any thread.
  void interrupt();

 private:
  using Clock = std::chrono::steady_clock;

  explicit RemoteSteps(RemoteStepsOptions options);
  /// Connects; retries until `deadline`, with at least one attempt.
  Status connectUntil(Clock::time_point deadline);
  /// One attempt to connect.
  Status connectOnce(std::chrono::milliseconds timeout);
  /// Joins; retries until connectTimeout while the daemon is unreachable or the executor overloaded.
  Result<RemoteJoin> joinFirst();
  /// Joins over the current connection: one attempt.
  Result<RemoteJoin> joinOnce();
  /// Fails if the module differs from that of the previous connection, if any, or does not accept the parts
  /// of the step.
  Status checkSameModule(const RemoteModule& module) const;
  Result<double> forwardOnce();
  Result<double> trainPartsOnce();
  Result<StepResult> stepOnce(Step step, uint32_t samples);
  /// Called after a failed call; returns ok if the call is to be repeated.
  Status recover(const Error& error);
  /// Repeats forwardOnce() until it succeeds or fails for good. Does not end the fault, unlike
  /// callWithRetry().
  Status forwardAgain();
  /// Called when a public call has succeeded: ends the fault.
  void succeeded();
  /// Reports a fault, with the remaining time of retries, unless it has been reported already.
  void reportFaultOnce(ClientEvent::What what, const Error& error, std::chrono::milliseconds left);
  /// Reports that the fault is over, if it had been reported.
  void reportRecovered();
  Status reconnect(const Error& cause, Clock::time_point deadline);
  /// Repeats the call until it succeeds or fails for good.
  template <class Call>
  auto callWithRetry(const Call& call) -> decltype(call());
  /// Sleeps for `time`, or until interrupt().
  void pause(std::chrono::milliseconds time);
  void report(ClientEvent::What what, const std::string& line) const;

  const RemoteStepsOptions options_;
  const uint64_t incarnation_;
  RemoteModule module_;
  Membership membership_;
  bool joined_ = false;
  std::vector<uint64_t> daemons_;                 ///< of the newest session
  bool stepped_ = false;                          ///< some step has been pushed
  std::optional<Clock::time_point> faultySince_;  ///< start of the current fault; see retryTimeout
  std::optional<Clock::time_point> reportedAt_;   ///< when the current fault was reported to onEvent
  bool sessionLost_ = false;                      ///< the fault has ended the session
  uint64_t context_ = 0;                          ///< the newest that was used
  // The current step, between forward() and step():
  std::vector<uint64_t> contexts_;  ///< one per part
  std::vector<BatchPart> parts_;
  std::vector<NamedTensor> gradients_;  ///< of the outputs, if there is one part
  std::atomic<bool> interrupted_{false};
  std::mutex mutex_;                             // guards trainer_
  std::shared_ptr<ExecutorConnection> trainer_;  // set only by the owning thread; not null after connect()
};

}  // namespace psd
