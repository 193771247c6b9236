#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <kj/async.h>

#include "trainer/client/api/client.h"
#include "trainer/executor/context_rows.h"
#include "trainer/executor/executor_config.h"
#include "trainer/executor/float_arrays.h"
#include "trainer/executor/model_location.h"
#include "trainer/executor/stages/execution.h"
#include "trainer/executor/task_threads.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// The parameters of a pass, and their versions.
struct PulledWeights {
  Weights values;
  std::vector<Version> versions;
  std::shared_ptr<ContextRows> rows;  ///< null: the model has no tables
};

/// A remote trainer's session with the daemon: a client in the trainer's rank, on a thread of its own, since
/// pulls and pushes may wait for other trainers. The first fault of the connection is final: a trainer that
/// reconnects gets a new DaemonSession with the same incarnation. Owned by the event loop's thread. Ending it
/// may take seconds, so another thread does that by calling end() until it returns true. Shared by the
/// contexts that compute over the daemon's memory, which stays mapped while this object lives.
class DaemonSession : public std::enable_shared_from_this<DaemonSession> {
 public:
  /// `model`, `arrays` and `places` outlive it. It connects to the servers in `places` and reports moves of
  /// the model there. `place` is released when this object is destroyed.
  DaemonSession(ExecutionModel& model, FloatArrays& arrays, ModelLocation& places,
                const ExecutorConfig& config, ClientOptions options, std::shared_ptr<const void> place);
  /// Waits for the call in progress.
  ~DaemonSession() = default;

  /// Connects, joins, and waits until the model has values. If the daemon has none and asks for them, sends
  /// the newest values that the executor has pulled, or else the module's initial values.
  kj::Promise<Result<JoinInfo>> join(const Membership& membership);
  using Inputs = std::shared_ptr<const std::vector<NamedTensor>>;

  /// Pulls what a pass over these inputs computes with: the current parameters (a copy, or the daemon's
  /// memory), and copies of the rows that it uses.
  kj::Promise<Result<PulledWeights>> weights(Inputs inputs, bool training);
  /// Pushes the sum of these gradients, which is computed in place in the first one. `rows`: with their
  /// gradients; null if the model has no tables.
  kj::Promise<Result<PushInfo>> push(Step step, std::vector<std::shared_ptr<float>> gradients,
                                     std::shared_ptr<const ContextRows> rows, uint32_t samples,
                                     std::vector<Version> basis);
  /// Says goodbye.
  kj::Promise<Result<bool>> leave();

  /// Drops queued calls; returns whether no call is in progress any more. A call that takes long, because it
  /// waits for other trainers, is interrupted by a later end(). No other call may follow.
  bool end();

 private:
  /// Tries the servers in turn while the one that answers is a standby.
  Result<JoinInfo> joinNow(const Membership& membership);
  /// Connects within connectTimeout, in short attempts, so that it notices between them that the trainer has
  /// disconnected.
  Result<std::shared_ptr<Client>> connect(const ClientOptions& options);
  Result<JoinInfo> joinWith(const ClientOptions& options, const Membership& membership);
  Result<PulledWeights> weightsNow(const std::vector<NamedTensor>& inputs, bool training);
  /// The table rows that a pass over these inputs uses, to be pulled; null if the model has no tables.
  Result<std::shared_ptr<ContextRows>> rowsOf(const std::vector<NamedTensor>& inputs, bool training);
  Status checkJoined(const JoinInfo& info) const;

  const std::shared_ptr<const void> sessionSlot_;  // first: destroyed last
  ExecutionModel& model_;
  FloatArrays& arrays_;
  ModelLocation& location_;
  const WeightsMode mode_;
  const bool exclusive_;
  const ClientOptions options_;
  Weights initialValues_;                                             ///< initial values, during the join
  std::optional<std::chrono::steady_clock::time_point> endingSince_;  // belongs to the caller of end()
  std::mutex mutex_;                // guards the next two; only thread_ uses the client
  bool ending_ = false;             // no further client may be made
  std::shared_ptr<Client> client_;  // null before it is connected
  TaskThreads thread_;              // last: its tasks use the members above
};

}  // namespace psd
