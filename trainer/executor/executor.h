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

#include "trainer/client/client.h"
#include "trainer/executor/daemon_session.h"
#include "trainer/executor/ending_sessions.h"
#include "trainer/executor/executor_config.h"
#include "trainer/executor/executor_status.h"
#include "trainer/executor/float_arrays.h"
#include "trainer/executor/model_places.h"
#include "trainer/executor/step_turns.h"
#include "trainer/executor/task_threads.h"
#include "trainer/model/execution.h"

namespace psd {

/// A remote trainer as its executor sees it.
class ExecutorTrainer {
 public:
  virtual ~ExecutorTrainer() = default;
  /// Ends what nobody has called for since `before`.
  virtual void dropIdle(std::chrono::steady_clock::time_point before) = 0;
  virtual RemoteTrainerStatus status() const = 0;
};

/// What the sessions of an executor share: the model, the threads that compute, the memory, and what of them
/// peers may use. Owned by the event loop's thread, and gone before the loop is.
class Executor {
 public:
  using CallSlot = std::shared_ptr<const void>;

  /// `daemon`: how sessions reach it, but for their incarnations. memory_bytes is checked against the model.
  static Result<std::unique_ptr<Executor>> make(ExecutorConfig config, ClientOptions daemon,
                                                std::unique_ptr<ExecutionModel> model);

  const ExecutorConfig& config() const { return config_; }
  ExecutionModel& model() { return *model_; }
  TaskThreads& workers() { return workers_; }
  FloatArrays& arrays() { return arrays_; }
  StepTurns& turns() { return turns_; }

  /// Counts a call until all copies of the result are gone, on whatever thread; overloaded: `queue` calls are
  /// there.
  Result<CallSlot> admitCall();
  /// A session with the daemon for a trainer, with what ClientOptions has of it. When it goes, its end is
  /// waited for elsewhere. overloaded: too many of trainers that are gone have not ended, or the system has
  /// no thread left.
  Result<std::shared_ptr<DaemonSession>> makeDaemonSession(uint64_t incarnation,
                                                           std::vector<uint64_t> rowsAt);
  /// Keeps a session that has lost a daemon, while its trainer tries to come back by the same incarnation: so
  /// it stays in at the other daemons that serve the model, which would count it as lost meanwhile. Until
  /// takeKept(), or for `silence_ms`, within which a trainer that lives makes an attempt.
  void keep(uint64_t incarnation, std::shared_ptr<DaemonSession> session);
  /// null: there is none.
  std::shared_ptr<DaemonSession> takeKept(uint64_t incarnation);
  /// Whether a caller may join with an incarnation; forbidden: that is a trainer of another caller. `owner`
  /// tells callers apart: the name of a certificate, the user behind a Unix socket; empty: nothing does.
  Status mayJoin(uint64_t incarnation, const std::string& owner) const;
  /// Notes the owner of a trainer that the daemon has let in.
  void noteOwner(uint64_t incarnation, const std::string& owner);
  /// Counts a trainer as there, until forget(); overloaded: `trainers` are.
  Status admit(ExecutorTrainer& trainer);
  void forget(ExecutorTrainer& trainer) { trainers_.erase(&trainer); }

  /// Ends contexts that nobody has called for `context_ms`, and sessions that were kept for long enough.
  void dropIdle();
  ExecutorStatus status() const;

 private:
  Executor(ExecutorConfig config, ClientOptions daemon, std::unique_ptr<ExecutionModel> model);
  /// Ok where another trainer may come in.
  Status checkRoom() const;
  /// Ok where another session with the daemon may begin.
  Status checkSessions() const;

  const ExecutorConfig config_;
  const ClientOptions daemon_;
  const std::unique_ptr<ExecutionModel> model_;
  const std::shared_ptr<ByteBudget> memory_;
  FloatArrays arrays_;
  ModelPlaces places_;
  StepTurns turns_;
  std::set<ExecutorTrainer*> trainers_;
  const std::shared_ptr<std::atomic<uint32_t>> calls_ = std::make_shared<std::atomic<uint32_t>>(0);
  uint64_t refused_ = 0;  // calls, as overloaded
  const std::shared_ptr<std::atomic<uint32_t>> sessions_ = std::make_shared<std::atomic<uint32_t>>(0);
  EndingSessions ending_;  // they use the others
  struct Kept {
    std::shared_ptr<DaemonSession> session;
    std::chrono::steady_clock::time_point since;
  };
  std::map<uint64_t, Kept> kept_;           // by incarnation
  std::map<uint64_t, std::string> owners_;  // by incarnation, the newest kOwnersMax
  std::deque<uint64_t> owned_;              // the oldest first
  TaskThreads workers_;
};

}  // namespace psd
