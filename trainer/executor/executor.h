#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <kj/async.h>

#include "trainer/client/api/client.h"
#include "trainer/executor/daemon_session.h"
#include "trainer/executor/ending_sessions.h"
#include "trainer/executor/executor_config.h"
#include "trainer/executor/executor_status.h"
#include "trainer/executor/float_arrays.h"
#include "trainer/executor/model_location.h"
#include "trainer/executor/stages/execution.h"
#include "trainer/executor/step_turns.h"
#include "trainer/executor/task_threads.h"

namespace psd {

/// The executor's view of a remote trainer.
class ExecutorTrainer {
 public:
  virtual ~ExecutorTrainer() = default;
  /// Ends the contexts that no call has used since `before`.
  virtual void dropIdle(std::chrono::steady_clock::time_point before) = 0;
  virtual RemoteTrainerStatus status() const = 0;
};

/// What the sessions of an executor share: the model, the compute threads, memory, and the limits on what
/// peers may use of them. Owned by the event loop's thread; destroyed before the loop.
class Executor {
 public:
  using CallSlot = std::shared_ptr<const void>;

  /// `daemon`: the options with which sessions connect, except their incarnations. Fails if memory_bytes is
  /// too small for the model.
  static Result<std::unique_ptr<Executor>> make(ExecutorConfig config, ClientOptions daemon,
                                                std::unique_ptr<ExecutionModel> model);

  const ExecutorConfig& config() const { return config_; }
  ExecutionModel& model() { return *model_; }
  TaskThreads& workers() { return workers_; }
  FloatArrays& arrays() { return arrays_; }
  StepTurns& turns() { return turns_; }

  /// Counts a call until all copies of the result are destroyed, on any thread. overloaded: there are `queue`
  /// calls already.
  Result<CallSlot> admitCall();
  /// Makes a daemon session for a trainer. `incarnation`, `rowsAt`: see ClientOptions. When the session is
  /// released, EndingSessions waits for its end. overloaded: too many sessions of departed trainers have not
  /// ended, or the system is out of threads.
  Result<std::shared_ptr<DaemonSession>> makeDaemonSession(uint64_t incarnation,
                                                           std::vector<uint64_t> rowsAt);
  /// Keeps a session that has lost a daemon while its trainer tries to rejoin with the same incarnation, so
  /// that the other daemons that serve the model do not count the trainer as lost meanwhile. Kept until
  /// takeKeptSession(), or for `silence_ms`, within which a live trainer makes an attempt.
  void keep(uint64_t incarnation, std::shared_ptr<DaemonSession> session);
  /// Null if there is none.
  std::shared_ptr<DaemonSession> takeKeptSession(uint64_t incarnation);
  /// Whether a caller may join with an incarnation; forbidden: the incarnation is a trainer of another
  /// caller. `owner` identifies the caller: the name in its certificate, or the user of its Unix socket;
  /// empty: unknown.
  Status checkOwner(uint64_t incarnation, const std::string& owner) const;
  /// Records the owner of a trainer that the daemon has admitted.
  void recordOwner(uint64_t incarnation, const std::string& owner);
  /// Counts a trainer until forget(). overloaded: `trainers` are admitted already.
  Status admit(ExecutorTrainer& trainer);
  void forget(ExecutorTrainer& trainer) { trainers_.erase(&trainer); }

  /// Ends contexts that no call has used for `context_ms`, and kept sessions after `silence_ms`.
  void dropIdle();
  ExecutorStatus status() const;

 private:
  Executor(ExecutorConfig config, ClientOptions daemon, std::unique_ptr<ExecutionModel> model);
  /// Ok if another trainer can be admitted.
  Status checkCapacity() const;
  /// Ok if another daemon session can be made.
  Status checkSessions() const;

  const ExecutorConfig config_;
  const ClientOptions daemon_;
  const std::unique_ptr<ExecutionModel> model_;
  const std::shared_ptr<ByteBudget> memory_;
  FloatArrays arrays_;
  ModelLocation location_;
  StepTurns turns_;
  std::set<ExecutorTrainer*> trainers_;
  const std::shared_ptr<std::atomic<uint32_t>> calls_ = std::make_shared<std::atomic<uint32_t>>(0);
  uint64_t refused_ = 0;  // calls rejected as overloaded
  const std::shared_ptr<std::atomic<uint32_t>> sessions_ = std::make_shared<std::atomic<uint32_t>>(0);
  EndingSessions ending_;  // its sessions use the members above
  struct Kept {
    std::shared_ptr<DaemonSession> session;
    std::chrono::steady_clock::time_point since;
  };
  std::map<uint64_t, Kept> kept_;           // by incarnation
  std::map<uint64_t, std::string> owners_;  // by incarnation, the newest kOwnersMax
  std::deque<uint64_t> owned_;              // the keys of owners_, oldest first
  TaskThreads workers_;
};

}  // namespace psd
