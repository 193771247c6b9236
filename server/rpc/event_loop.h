#pragma once

#include <functional>
#include <map>
#include <memory>
#include <thread>

#include <kj/async-io.h>

#include "common/wire/buffer_pool.h"
#include "common/wire/byte_budget.h"
#include "server/config/daemon_config.h"
#include "server/metrics/counters.h"
#include "server/rpc/served_model.h"

namespace psd {

class Connection;
class Control;

/// What every loop shares; all of it is thread-safe or immutable and outlives the loops.
struct LoopEnvironment {
  const DaemonConfig& config;
  DaemonCounters& counters;
  const kj::Executor& controlExecutor;
  Control& control;                                ///< only through EventLoop::onControl()
  std::function<nlohmann::ordered_json()> status;  ///< the daemon's whole status; on the control loop
  std::shared_ptr<wire::ByteBudget> inFlight;      ///< limits.in_flight_bytes
  std::shared_ptr<wire::ByteBudget> rings;         ///< limits.all_rings_bytes
  std::atomic<bool> draining{false};               ///< set: only updates that have begun are taken
  std::atomic<bool> closed{false};                 ///< set: no update is taken any more
};

/// One event loop with its connections, buffers and lanes. Everything in it belongs to its thread. Shared
/// with its connections, since a call that cannot be cancelled may outlive both its connection and the loop's
/// orderly end; after shutDown() all that such a call can still reach is harmless.
class EventLoop final : public std::enable_shared_from_this<EventLoop>, private kj::TaskSet::ErrorHandler {
 public:
  EventLoop(kj::AsyncIoContext& io, LoopEnvironment& environment);

  /// Closes all connections and drops all tasks. Only running() and update…() may be called after.
  void shutDown();

  LoopEnvironment& environment() { return environment_; }
  kj::AsyncIoContext& io() { return io_; }
  kj::Timer& timer() { return io_.provider->getTimer(); }
  const std::shared_ptr<wire::BufferPool>& pool() { return pool_; }

  /// Takes over an accepted socket, already counted as open.
  void adopt(int fd, std::string peer);
  /// Ends a connection as soon as the current work on it is off the stack; `reason` empty: the peer left.
  void drop(Connection& connection, std::string reason);

  /// Runs `work(control)` on the control loop; the promise resolves here. `work` may return a promise.
  template <class Work>
  auto onControl(Work work) {
    return environment_.controlExecutor.executeAsync(
        [this, work = std::move(work)]() mutable { return work(environment_.control); });
  }
  /// Keeps a promise running that nobody waits for.
  void detach(kj::Promise<void> task) { tasks_->add(kj::mv(task)); }
  bool running() const { return tasks_.get() != nullptr; }

  /// This loop's lane for the shard's device.
  Lane& laneFor(const std::shared_ptr<ServedModel>& model, const Shard& shard);

  /// Updates that have some of their slices, on this loop.
  void updateBegan() { openUpdates_++; }
  void updateEnded() { openUpdates_--; }
  /// Nothing is half done or unsent here.
  bool quiet() const;
  bool hasTrainers() const;

 private:
  kj::Promise<void> sweep();
  void taskFailed(kj::Exception&& exception) override;

  kj::AsyncIoContext& io_;
  LoopEnvironment& environment_;
  std::shared_ptr<wire::BufferPool> pool_;
  std::weak_ptr<ServedModel> lanesModel_;
  Lanes lanes_;
  uint64_t openUpdates_ = 0;
  std::map<Connection*, std::shared_ptr<Connection>> connections_;
  kj::Own<kj::TaskSet> tasks_;
};

/// A thread that runs one EventLoop. Owned by the control loop's thread.
class EventLoopThread final : private kj::TaskSet::ErrorHandler {
 public:
  /// Returns once the loop runs.
  EventLoopThread(LoopEnvironment& environment, unsigned index);
  ~EventLoopThread();

  /// Runs `work(loop)` on the loop's thread.
  template <class Work>
  auto run(Work work) {
    return executor_->executeAsync([this, work = std::move(work)]() mutable { return work(*loop_); });
  }
  /// The same for work whose end nobody waits for.
  template <class Work>
  void post(Work work) {
    posted_.add(run(std::move(work)));
  }
  /// Ends the loop; resolves when its thread touches nothing any more. Until then the control loop must
  /// turn, since what the thread drops may wait for it.
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
