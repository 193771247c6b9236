#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kj/async.h>

#include "trainer/executor/daemon_session.h"
#include "trainer/executor/executor.h"
#include "trainer/task/named_tensor.h"

namespace psd {

struct LogFields;

/// The arguments of a forward pass.
struct ForwardCall {
  uint64_t context = 0;
  std::vector<NamedTensor> inputs;
  bool training = false;
  int8_t priority = 0;
};

/// The result of a forward pass.
struct ForwardDone {
  std::shared_ptr<const ForwardPass> pass;
  std::vector<Version> versions;
};

/// One remote trainer: its contexts, and its session with the daemon. A context is a forward pass that waits
/// for its backward pass, or a gradient that waits for its step. A call that fails during computation or
/// push, or as overloaded, ends its context, and so does a backward pass whose gradients do not match the
/// outputs. A call that is invalid in the context's current state leaves the context unchanged. Independent
/// of the RPC protocol. Owned by the event loop's thread; lives until its calls are done.
class ExecutionSession final : public ExecutorTrainer, public std::enable_shared_from_this<ExecutionSession> {
 public:
  /// `executor` must live at least until close(). `peer`: its name in logs. `owner`: see
  /// Executor::checkOwner().
  ExecutionSession(Executor& executor, std::string peer, std::string owner);
  ~ExecutionSession() override;

  /// `incarnation`, `rowsAt`: see ClientOptions.
  kj::Promise<Result<JoinInfo>> join(const Membership& membership, uint64_t incarnation,
                                     std::vector<uint64_t> rowsAt);
  kj::Promise<Result<ForwardDone>> forward(ForwardCall call);
  /// Resolves to true on success.
  kj::Promise<Result<bool>> backward(uint64_t context, std::vector<NamedTensor> outputGradients,
                                     int8_t priority);
  /// Pushes the sum of the gradients of `context` and of the contexts in `also`, and ends all of them.
  kj::Promise<Result<PushInfo>> step(uint64_t context, Step step, uint32_t samples,
                                     const std::vector<uint64_t>& also = {});
  /// Copies of the gradients of the named parameters and tables, or of all if `names` is empty. See
  /// gradientTensors().
  Result<std::vector<NamedTensor>> gradients(uint64_t context, const std::vector<std::string>& names) const;
  void drop(uint64_t context) { contexts_.erase(context); }
  kj::Promise<Result<bool>> leave();
  /// Ends the session: the peer has disconnected or is to be disconnected. No call may follow.
  void close();
  /// Whether the session has ended: every further call fails.
  bool over() const { return endError_.has_value(); }

  /// Ends the contexts that no call has used since `before`.
  void dropIdle(std::chrono::steady_clock::time_point before) override;
  RemoteTrainerStatus status() const override;

 private:
  struct Context;
  using ContextPtr = std::shared_ptr<Context>;
  using Inputs = std::shared_ptr<std::vector<NamedTensor>>;

  Result<ContextPtr> begin(ForwardCall& call);
  /// The context for a call on its result, a pass or a gradient; an Error if it does not exist or is busy.
  Result<ContextPtr> find(uint64_t context) const;
  /// The contexts whose gradients make one step, `context` first; an Error if one of them has no gradient
  /// yet.
  Result<std::vector<ContextPtr>> findAll(uint64_t context, const std::vector<uint64_t>& also) const;
  Status usable() const;
  LogFields fields(std::string event) const;
  /// Ends the context, unless another one has its number by now, and also the session if the error ends it.
  /// Returns the error, or the one that had ended the session before.
  Error failed(const ContextPtr& context, const Error& error);
  /// Ends the context, unless another one has its number by now.
  void end(const ContextPtr& context);
  kj::Promise<Result<std::shared_ptr<ForwardPass>>> compute(const ContextPtr& context,
                                                            Executor::CallSlot slot, const ForwardCall& call,
                                                            const Inputs& inputs,
                                                            Result<PulledWeights> weights);
  Result<ForwardDone> finish(const ContextPtr& context, bool training,
                             Result<std::shared_ptr<ForwardPass>> pass);

  Executor& executor_;
  const std::string peer_, owner_;
  std::shared_ptr<DaemonSession> daemon_;       // null before join() and after close()
  std::shared_ptr<DaemonSession> keptSession_;  // the kept session of this trainer, during the join
  uint64_t incarnation_ = 0;
  bool admitted_ = false;  // the executor counts it
  bool joined_ = false;    // the daemon has admitted it
  Rank rank_;
  std::optional<Error> endError_;  // why the session has ended
  std::map<uint64_t, ContextPtr> contexts_;
  std::deque<uint64_t> expiredContexts_;  // the last contexts that dropIdle() ended
  Step newest_;                           // being pushed, or pushed successfully
  uint64_t forwards_ = 0, steps_ = 0, staleness_ = 0;
};

}  // namespace psd
