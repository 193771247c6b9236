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
#include "trainer/client/client.h"
#include "trainer/remote/executor_connection.h"
#include "trainer/remote/loss_result.h"

namespace psd {

struct RemoteStepsOptions {
  std::string executor;  ///< "tcp://host:port", "tls://host:port" or "unix:///path"
  TlsFiles tls;          ///< for an executor at tls://
  std::string program = "psd-trainer";
  /// How long to keep trying while nobody answers, neither the executor nor, once a first join asks for it,
  /// its daemon.
  std::chrono::milliseconds connectTimeout{30'000};
  /// How long to try to come back when the connection breaks, the executor or its daemon dies, or is
  /// overloaded; 0: the first fault is final. A step is tried as a whole: passes of it that succeed meanwhile
  /// make that no longer.
  std::chrono::milliseconds retryTimeout{0};
  /// Whether it goes on where the daemon has lost the rows of embedding tables that it has pushed; they are
  /// then as they begin. Else coming back fails (modelMismatch).
  bool goOnWithoutRows = false;
  /// Called, on the trainer's thread, with what keeps it; null: nobody is told.
  std::function<void(const ClientEvent&)> onEvent;
};

/// Training steps at an executor, one at a time, through its faults: a step whose connection broke is
/// computed anew, over newer parameters, and pushed with the same number, which the daemon applies once.
/// Owned by one thread.
class RemoteSteps {
 public:
  /// Connects, and retries until the timeout while nobody answers.
  static Result<std::unique_ptr<RemoteSteps>> connect(RemoteStepsOptions options);

  const RemoteModule& module() const { return module_; }
  const std::string& executor() const { return options_.executor; }
  Result<RemoteJoin> join(const Membership& membership);

  /// The forward pass of a training step, and the loss, which it gives. Both are kept for step().
  Result<double> forward(std::vector<NamedTensor> inputs, RemoteLoss loss) {
    std::vector<BatchPart> whole;  // a list in braces would copy it
    whole.push_back({std::move(inputs), std::move(loss)});
    return forward(std::move(whole));
  }
  /// The forward pass of a training step whose batch comes in parts, at least one and not more than
  /// checkParts() allows, and its loss. Passes of several parts go on side by side, the backward passes among
  /// them; their losses are computed on another thread, one at a time.
  Result<double> forward(std::vector<BatchPart> parts);
  /// The backward pass, where it has not been, and the step: of what forward() has left. `step` rises with
  /// every call. A step of which the daemon has a part that it had been sent before a fault counts as late:
  /// nothing more of it is applied.
  Result<StepResult> step(Step step, uint32_t samples);
  /// Outputs as in use, of which nothing is kept.
  Result<std::vector<NamedTensor>> outputs(const std::vector<NamedTensor>& inputs);
  Status leave();

  /// What is under way, and all later calls, fail (interrupted). From any thread.
  void interrupt();

 private:
  using Clock = std::chrono::steady_clock;

  explicit RemoteSteps(RemoteStepsOptions options);
  /// One attempt, or, until `deadline`, as many as it takes.
  Status connectUntil(Clock::time_point deadline);
  Result<std::shared_ptr<ExecutorConnection>> connectOnce(std::chrono::milliseconds timeout);
  /// Tries until connectTimeout has passed, while the daemon is out of reach or the executor has no room.
  Result<RemoteJoin> joinFirst();
  /// One attempt, over the connection that there is.
  Result<RemoteJoin> joinOnce();
  /// Fails on another module than the one of the connection before, if there was one, and on one that does
  /// not take the parts of the step.
  Status checkSame(const RemoteModule& module) const;
  Result<double> forwardOnce();
  Result<double> trainPartsOnce();
  Result<StepResult> stepOnce(Step step, uint32_t samples);
  /// After a call has failed: ok where it is to be made again.
  Status recover(const Error& error);
  /// forwardOnce() until it does not fail, or fails for good. What was faulty before it is so after it.
  Status forwardAgain();
  /// A call that whoever uses this has made has not failed.
  void succeeded();
  /// Tells of a fault, unless it is told of already, and for how long there are attempts.
  void tellOnce(ClientEvent::What what, const Error& error, std::chrono::milliseconds left);
  /// Tells, where a fault was told of, that it is over.
  void tellBack();
  Status comeBack(const Error& cause, Clock::time_point deadline);
  /// Calls until it does not fail, or fails for good.
  template <class Call>
  auto persist(const Call& call) -> decltype(call());
  /// Not longer than until interrupt().
  void pause(std::chrono::milliseconds time);
  void tell(ClientEvent::What what, const std::string& line) const;

  const RemoteStepsOptions options_;
  const uint64_t incarnation_;
  RemoteModule module_;
  Membership membership_;
  bool joined_ = false;
  std::vector<uint64_t> daemons_;                 ///< of the newest session
  bool stepped_ = false;                          ///< some step has been pushed
  std::optional<Clock::time_point> faultySince_;  ///< a call, or a step as a whole, has failed since
  std::optional<Clock::time_point> toldAt_;  ///< when whoever uses this was told of a fault that is not over
  bool broken_ = false;                      ///< the fault has ended the session
  uint64_t context_ = 0;                     ///< the newest that was used
  // Of the step between forward() and step():
  std::vector<uint64_t> contexts_;  ///< one of each part
  std::vector<BatchPart> parts_;
  std::vector<NamedTensor> gradients_;  ///< of the outputs, of one part
  std::atomic<bool> interrupted_{false};
  std::mutex mutex_;                             // guards what follows
  std::shared_ptr<ExecutorConnection> trainer_;  // changed by the owner alone; not null after connect()
};

}  // namespace psd
