#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "common/types/push_outcome.h"
#include "trainer/client/client.h"
#include "trainer/remote/loss_result.h"
#include "trainer/task/loss_spec.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// What an executor computes.
struct RemoteModule {
  std::string name;
  std::vector<ColumnSpec> inputs;  ///< what a forward pass takes of each sample
  std::string version;             ///< of psd at the executor
  /// What a trainer is to compute of the outputs; nothing: a kind that this version does not know.
  std::optional<LossSpec> loss;
  bool exclusive = false;  ///< a trainer that has a context gets no second one until that ends
  uint32_t contexts = 0;   ///< that each trainer may have
  uint32_t queue = 0;      ///< calls that may be there, of all trainers together
  bool tables = false;     ///< it has embedding tables, so that a step is of one context
};

/// Whether the executor takes a batch in so many parts, each in a context of its own.
Status checkParts(const RemoteModule& module, uint64_t parts);

/// What joining told.
struct RemoteJoin {
  Rank rank;
  uint32_t worldSize = 0;
  std::string policy;  ///< of the daemon, for people
  std::string device;  ///< where the daemon's shards are, for people
  uint32_t shards = 0;
  std::vector<uint64_t> daemons;  ///< which processes the daemons are
};

struct ForwardResult {
  std::vector<NamedTensor> outputs;
  std::vector<Version> versions;  ///< per shard, of the parameters that the pass saw
};

/// A part of a batch, and what the trainer makes of its outputs: its share of the loss of the whole.
struct BatchPart {
  std::vector<NamedTensor> inputs;
  RemoteLoss loss;
};

struct StepResult {
  PushOutcome outcome = PushOutcome::applied;
  uint64_t staleness = 0;  ///< updates between the parameters of the forward pass and this gradient
};

/// A connection of a trainer to an executor (psd-executor), which computes forward and backward passes for it
/// over a daemon's parameters. Usable without LibTorch and without a copy of the model. The calls are those
/// of schema/executor.capnp, which documents them; each waits for its answer. Once the connection has broken,
/// or nothing came over it for as long as the executor allows, every call fails (unavailable), and another
/// object is to be made.
///
/// Owned by one thread, which makes all calls; a background thread does the input and output.
class ExecutorConnection {
 public:
  /// Connects to tcp://HOST:PORT, unix:///PATH, or tls://HOST:PORT with the certificate in `tls`, and agrees
  /// on the protocol: one attempt, within `timeout`. `program`: what this program calls itself, for people.
  static Result<std::unique_ptr<ExecutorConnection>> connect(const std::string& executor,
                                                             std::chrono::milliseconds timeout,
                                                             const std::string& program,
                                                             const TlsFiles& tls = {});
  ~ExecutorConnection();
  ExecutorConnection(const ExecutorConnection&) = delete;

  const RemoteModule& module() const;

  /// Becomes a trainer of the executor's daemon, once. `incarnation`: drawn once in a trainer's life, not 0;
  /// who comes back gives it again. `rowsAt`: of who has pushed rows of embedding tables, RemoteJoin::daemons
  /// of that session, so that it is refused (modelMismatch) where these rows are lost.
  Result<RemoteJoin> join(const Membership& membership, uint64_t incarnation,
                          const std::vector<uint64_t>& rowsAt = {});

  // After join(). `context`: any number that is not in use.

  Result<ForwardResult> forward(uint64_t context, const std::vector<NamedTensor>& inputs, bool training,
                                int8_t priority = 0);
  Status backward(uint64_t context, const std::vector<NamedTensor>& outputGradients, int8_t priority = 0);
  /// backward() and step() in one round trip.
  Result<StepResult> backwardAndStep(uint64_t context, const std::vector<NamedTensor>& outputGradients,
                                     Step step, uint32_t samples, int8_t priority = 0);
  /// Of the parameters and tables with these names; none named: of all. A table gives two tensors: its rows'
  /// gradients, f32[rows, dim], by its own name, then their ids, i64[rows], by that and ".ids".
  Result<std::vector<NamedTensor>> gradients(uint64_t context, const std::vector<std::string>& names = {});
  /// `also`: further contexts, whose gradients are added; they end with the step.
  Result<StepResult> step(uint64_t context, Step step, uint32_t samples,
                          const std::vector<uint64_t>& also = {});
  /// Forward and backward passes of parts of a batch, in contexts from `first` on. Several parts are under
  /// way at once, few against the executor's `queue`, and each backward pass is asked for as soon as its
  /// outputs are there, so that an executor does both in turn. Gives the sum of the losses, which are
  /// computed on the background thread. After an Error some of the contexts may be there.
  Result<double> trainParts(uint64_t first, const std::vector<BatchPart>& parts);
  Status drop(uint64_t context);
  /// Says goodbye: the daemon counts this trainer as done.
  Status leave();

  /// Allowed before join(). What the executor is at, as JSON.
  Result<std::string> status();

  /// The call under way, and all later ones, fail (interrupted). From any thread, while this object lives.
  void interrupt();

 private:
  class Wire;
  explicit ExecutorConnection(std::unique_ptr<Wire> wire);

  const std::unique_ptr<Wire> wire_;
};

}  // namespace psd
