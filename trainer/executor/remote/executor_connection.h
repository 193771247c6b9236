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
#include "trainer/client/api/client.h"
#include "trainer/executor/remote/loss_result.h"
#include "trainer/task/loss_spec.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// The module that an executor computes, and its limits, from `hello`.
struct RemoteModule {
  std::string name;
  std::vector<ColumnSpec> inputs;  ///< the columns of a sample that a forward pass takes
  std::string version;             ///< psd version of the executor
  /// The loss that a trainer computes from the outputs; nothing: its kind is unknown to this version.
  std::optional<LossSpec> loss;
  bool exclusive = false;  ///< a trainer can have only one context at a time
  uint32_t contexts = 0;   ///< limit of contexts per trainer
  uint32_t queue = 0;      ///< limit of calls, of all trainers together
  bool tables = false;     ///< it has embedding tables, so a step consists of one context only
};

/// Checks that the executor accepts a batch divided into `parts` parts, each in a context of its own.
Status checkParts(const RemoteModule& module, uint64_t parts);

/// The result of join().
struct RemoteJoin {
  Rank rank;
  uint32_t worldSize = 0;
  std::string policy;  ///< of the daemon, human-readable
  std::string device;  ///< of the daemon's shards, human-readable
  uint32_t shards = 0;
  std::vector<uint64_t> daemons;  ///< identifiers of the daemons' processes
};

struct ForwardResult {
  std::vector<NamedTensor> outputs;
  std::vector<Version> versions;  ///< per shard, of the parameters that the pass read
};

/// A part of a batch, and the function that computes its share of the batch's loss from its outputs.
struct BatchPart {
  std::vector<NamedTensor> inputs;
  RemoteLoss loss;
};

struct StepResult {
  PushOutcome outcome = PushOutcome::applied;
  uint64_t staleness = 0;  ///< updates between the forward pass's pull and the application of this gradient
};

/// A trainer's connection to an executor (psd-executor), which computes forward and backward passes over a
/// daemon's parameters. Needs neither LibTorch nor a copy of the model. The calls are those of
/// schema/executor.capnp, which documents them; each blocks until its answer arrives. Once the connection has
/// broken, or was idle for longer than the executor's silence_ms, every call fails (unavailable) and the
/// caller must make a new object.
///
/// Owned by one thread, which makes all calls; a background thread does the I/O.
class ExecutorConnection {
 public:
  /// Connects to tcp://HOST:PORT, unix:///PATH, or tls://HOST:PORT with the certificate in `tls`, and does
  /// the protocol handshake: one attempt, within `timeout`. `program`: the name of this program,
  /// human-readable.
  static Result<std::unique_ptr<ExecutorConnection>> connect(const std::string& executor,
                                                             std::chrono::milliseconds timeout,
                                                             const std::string& program,
                                                             const TlsFiles& tls = {});
  ~ExecutorConnection();
  ExecutorConnection(const ExecutorConnection&) = delete;

  const RemoteModule& module() const;

  /// Joins the executor's daemon as a trainer; once per connection. `incarnation`: a number other than 0,
  /// drawn once per trainer process, which a rejoining trainer sends again. `rowsAt`: for a trainer that has
  /// pushed rows of embedding tables, RemoteJoin::daemons of that session; the join is rejected
  /// (modelMismatch) if these rows are lost.
  Result<RemoteJoin> join(const Membership& membership, uint64_t incarnation,
                          const std::vector<uint64_t>& rowsAt = {});

  // The calls below require join(). `context`: any number that is not in use.

  Result<ForwardResult> forward(uint64_t context, const std::vector<NamedTensor>& inputs, bool training,
                                int8_t priority = 0);
  Status backward(uint64_t context, const std::vector<NamedTensor>& outputGradients, int8_t priority = 0);
  /// backward() and step() in one round trip.
  Result<StepResult> backwardAndStep(uint64_t context, const std::vector<NamedTensor>& outputGradients,
                                     Step step, uint32_t samples, int8_t priority = 0);
  /// The gradients of the named parameters and tables, or of all if `names` is empty. A table yields two
  /// tensors: the gradients of its rows, f32[rows, dim], under its name, and their ids, i64[rows], under its
  /// name plus ".ids".
  Result<std::vector<NamedTensor>> gradients(uint64_t context, const std::vector<std::string>& names = {});
  /// Pushes the gradient of `context` and ends the context. `also`: further contexts, whose gradients are
  /// added and which end, too.
  Result<StepResult> step(uint64_t context, Step step, uint32_t samples,
                          const std::vector<uint64_t>& also = {});
  /// Forward and backward passes of the parts of a batch, in consecutive contexts from `first`. Several parts
  /// are in flight at once (a small share of the executor's `queue`), and each backward pass is requested as
  /// soon as its outputs arrive, so that the executor interleaves the two. Returns the sum of the losses,
  /// which are computed on the background thread. After an Error some of the contexts may exist.
  Result<double> trainParts(uint64_t first, const std::vector<BatchPart>& parts);
  Status drop(uint64_t context);
  /// Says goodbye: the daemon counts this trainer as done.
  Status leave();

  /// The executor's state, as JSON. Allowed before join().
  Result<std::string> status();

  /// Makes the call in progress and all later ones fail (interrupted). From any thread, while this object
  /// lives.
  void interrupt();

 private:
  class Wire;
  explicit ExecutorConnection(std::unique_ptr<Wire> wire);

  const std::unique_ptr<Wire> wire_;
};

}  // namespace psd
