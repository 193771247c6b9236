#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <kj/async.h>

#include "trainer/client/client.h"
#include "trainer/executor/context_rows.h"
#include "trainer/executor/executor_config.h"
#include "trainer/executor/float_arrays.h"
#include "trainer/executor/model_places.h"
#include "trainer/executor/task_threads.h"
#include "trainer/model/execution.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// Parameters, and which they are.
struct PulledWeights {
  Weights values;
  std::vector<Version> versions;
  std::shared_ptr<ContextRows> rows;  ///< null: the model has no tables
};

/// A remote trainer's session with the daemon: a client in the trainer's rank, with a thread of its own, as
/// pulls and pushes may wait for other trainers. The first fault of the connection is final: who comes back
/// makes another one, with the same incarnation. Owned by the event loop's thread; its end may take seconds,
/// so that is another thread's to wait for, which calls end(). Shared by contexts that compute over the
/// daemon's memory, which is mapped as long as this lives.
class DaemonSession : public std::enable_shared_from_this<DaemonSession> {
 public:
  /// `model`, `arrays` and `places` outlive it. It begins where `places` says that the model is, and tells it
  /// of moves. `place` goes with it.
  DaemonSession(ExecutionModel& model, FloatArrays& arrays, ModelPlaces& places, const ExecutorConfig& config,
                ClientOptions options, std::shared_ptr<const void> place);
  /// Waits for the call that is under way.
  ~DaemonSession() = default;

  /// Connects and joins; waits until the model has values. Brings the newest that the executor has, else its
  /// initial ones, where the daemon has none.
  kj::Promise<Result<JoinInfo>> join(const Membership& membership);
  using Inputs = std::shared_ptr<const std::vector<NamedTensor>>;

  /// What a pass over these inputs computes with: the parameters as they are now, a copy of them or the
  /// daemon's memory, and copies of the rows that it takes.
  kj::Promise<Result<PulledWeights>> weights(Inputs inputs, bool training);
  /// The sum of these gradients, of which the first becomes it. `rows`: with their gradients; null: the model
  /// has no tables.
  kj::Promise<Result<PushInfo>> push(Step step, std::vector<std::shared_ptr<float>> gradients,
                                     std::shared_ptr<const ContextRows> rows, uint32_t samples,
                                     std::vector<Version> basis);
  /// Says goodbye.
  kj::Promise<Result<bool>> leave();

  /// Drops calls that wait, and whether none is under way any more. One that goes on for long, as it waits
  /// for other trainers, is interrupted by a later end(). No call may follow.
  bool end();

 private:
  /// At the servers in turn, where the first that answers is a standby.
  Result<JoinInfo> joinNow(const Membership& membership);
  /// Connects, within connectTimeout, in attempts short enough to see between them that the trainer is gone.
  Result<std::shared_ptr<Client>> connect(const ClientOptions& options);
  Result<JoinInfo> joinWith(const ClientOptions& options, const Membership& membership);
  Result<PulledWeights> weightsNow(const std::vector<NamedTensor>& inputs, bool training);
  /// The rows of tables that a pass over these inputs takes, to be pulled; null: the model has no tables.
  Result<std::shared_ptr<ContextRows>> rowsOf(const std::vector<NamedTensor>& inputs, bool training);
  Status checkJoined(const JoinInfo& info) const;

  const std::shared_ptr<const void> place_;  // first: it goes last
  ExecutionModel& model_;
  FloatArrays& arrays_;
  ModelPlaces& places_;
  const WeightsMode mode_;
  const bool exclusive_;
  const ClientOptions options_;
  Weights bringing_;                                                ///< initial values, while it joins
  std::optional<std::chrono::steady_clock::time_point> endsSince_;  // of whoever calls end()
  std::mutex mutex_;                // guards what follows; the client is the thread's
  bool ending_ = false;             // no other client may follow
  std::shared_ptr<Client> client_;  // null before it is connected
  TaskThreads thread_;              // last: it uses the others
};

}  // namespace psd
