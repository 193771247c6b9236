#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include <kj/async-io.h>

#include "common/wire/buffer_pool.h"
#include "common/wire/spinner.h"
#include "server/config/daemon_config.h"
#include "server/limits/memory_budgets.h"
#include "server/loop/gate.h"
#include "server/loop/models_in_use.h"
#include "server/loop/peer_connections.h"
#include "server/loop/updates_in_flight.h"
#include "server/metrics/counters.h"
#include "server/policy/served_model.h"
#include "server/serving/serving_view.h"

namespace psd {

/// State that all loops share, thread-safe or immutable; outlives the loops.
struct LoopEnvironment {
  const std::shared_ptr<const DaemonConfig> config;  ///< at the start; each loop has a current config()
  DaemonMetrics& counters;
  MemoryBudgets& budgets;
  const ServingView& serving;  ///< which updates are accepted, and where the model is
};

/// One event loop: runs the calls of its connections and owns their buffers and lanes. Confined to its thread
/// except where noted. Shared with its connections, since a call that cannot be cancelled may outlive both
/// its connection and shutDown(); what such a call can still reach after that is harmless.
class EventLoop final : public std::enable_shared_from_this<EventLoop>, private kj::TaskSet::ErrorHandler {
 public:
  EventLoop(kj::AsyncIoContext& io, LoopEnvironment& environment);

  /// Closes all connections and drops all tasks. After it only running(), now(), underWay(), answer() (which
  /// fails) and detach() (a no-op) may be called.
  void shutDown();

  LoopEnvironment& environment() { return environment_; }
  kj::AsyncIoContext& io() { return io_; }
  kj::Timer& timer() { return io_.provider->getTimer(); }
  /// The timer's time; after shutDown() the time of the shutdown.
  kj::TimePoint now() const { return running_ ? io_.provider->getTimer().now() : endedAt_; }
  const std::shared_ptr<wire::BufferPool>& pool() { return pool_; }
  wire::Spinner& spinner() { return spinner_; }

  /// For other loops: runs work here that returns no promise.
  const kj::Executor& executor() const { return *executor_; }
  /// For other loops: runs `work()` here. Fails (DISCONNECTED) once the loop is shut down, and so does a
  /// promise of `work` that is then unresolved.
  template <class Work>
  auto request(Work work) {
    return executor_->executeAsync([this, work = std::move(work)]() mutable { return answer(work); });
  }
  /// Like request(), on the loop's own thread: runs `work()` immediately.
  template <class Work>
  auto answer(Work& work) {
    if (!running_) kj::throwFatalException(ended());
    if constexpr (requires { requests_.wrap(work()); }) {
      return requests_.wrap(work());
    } else {
      return work();
    }
  }
  bool isHere() const { return std::this_thread::get_id() == thread_; }
  /// Owns and runs a promise until shutDown().
  void detach(kj::Promise<void> task) {
    if (tasks_.get() != nullptr) tasks_->add(kj::mv(task));
  }
  /// False once the loop is shut down. Thread-safe.
  bool running() const { return running_; }

  /// See ModelsInUse.
  Lane& laneFor(const std::shared_ptr<ServedModel>& model, const Shard& shard) {
    return models_.laneFor(model, shard);
  }
  const std::shared_ptr<UpdatePolicy>& policyOf(const std::shared_ptr<ServedModel>& model,
                                                const ParameterBlock& block) {
    return models_.policyOf(model, block);
  }

  /// The current configuration; a reload replaces it.
  const DaemonConfig& config() const { return *config_; }
  void setConfig(std::shared_ptr<const DaemonConfig> config);

  PeerConnections& connections() { return connections_; }
  /// Holds back new gradients.
  Gate& gate() { return gate_; }
  /// The gradients in flight of this loop's trainers.
  UpdatesInFlight& underWay() { return underWay_; }
  bool atRest() const { return underWay_.atRest(); }
  /// No gradient is in flight and no answer is unsent.
  bool quiet() const { return underWay_.open == 0 && connections_.nothingQueued(); }

 private:
  void taskFailed(kj::Exception&& exception) override;
  static kj::Exception ended();

  kj::AsyncIoContext& io_;
  LoopEnvironment& environment_;
  wire::Spinner spinner_;
  std::shared_ptr<wire::BufferPool> pool_;
  ModelsInUse models_;
  std::shared_ptr<const DaemonConfig> config_;
  UpdatesInFlight underWay_;
  Gate gate_;
  PeerConnections connections_;
  kj::Own<kj::TaskSet> tasks_;
  kj::Canceler requests_;
  const kj::Own<const kj::Executor> executor_ = kj::getCurrentThreadExecutor().addRef();
  const std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<bool> running_{true};
  kj::TimePoint endedAt_ = kj::origin<kj::TimePoint>();
};

/// A thread that runs one EventLoop. Owned by the control loop's thread.
class EventLoopThread final : private kj::TaskSet::ErrorHandler {
 public:
  /// Returns once the loop is running.
  EventLoopThread(LoopEnvironment& environment, unsigned index);
  ~EventLoopThread();

  /// Runs `work(loop)` on the loop's thread.
  template <class Work>
  auto run(Work work) {
    return executor_->executeAsync([this, work = std::move(work)]() mutable {
      auto onLoop = [&] { return work(*loop_); };
      return loop_->answer(onLoop);
    });
  }
  /// Like run(), without a result to wait for; a failure is logged.
  template <class Work>
  void post(Work work) {
    posted_.add(run(std::move(work)));
  }
  // Loops end in three steps, each on all loops before the next: shutDown(), turn(), stop(). No request from
  // one loop to another may be in flight when either of them is destroyed: kj aborts the program.

  /// Calls EventLoop::shutDown(): later requests fail.
  kj::Promise<void> shutDown();
  /// Resolves after one turn of the loop, in which it answers the requests that were queued.
  kj::Promise<void> turn();
  /// Ends the thread; resolves when it touches no shared state any more. The control loop must keep turning
  /// until then, since destructors on the thread may wait for it.
  kj::Promise<void> stop();

 private:
  void taskFailed(kj::Exception&& exception) override;

  EventLoop* loop_ = nullptr;
  kj::Own<const kj::Executor> executor_;
  kj::Own<kj::PromiseFulfiller<void>> exit_;  // belongs to the loop's thread
  kj::Promise<void> finished_ = nullptr;
  kj::Own<kj::CrossThreadPromiseFulfiller<void>> finish_;
  std::thread thread_;
  kj::TaskSet posted_;
};

}  // namespace psd
