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

/// What a forward pass is asked for.
struct ForwardCall {
  uint64_t context = 0;
  std::vector<NamedTensor> inputs;
  bool training = false;
  int8_t priority = 0;
};

/// What it gave.
struct ForwardDone {
  std::shared_ptr<const ForwardPass> pass;
  std::vector<Version> versions;
};

/// One remote trainer: its contexts, and its session with the daemon. Each context is one forward pass that
/// waits for its backward pass, or a gradient that waits for its step. A call that fails while it is computed
/// or pushed, or for want of room, ends its context, as does one with gradients that do not fit the outputs;
/// one that does not fit what its context is at leaves it. Knows no protocol.
/// Owned by the event loop's thread; lives until its calls are done.
class ExecutionSession final : public ExecutorTrainer, public std::enable_shared_from_this<ExecutionSession> {
 public:
  /// `executor` outlives it, or at least its close(). `peer`: as logs name it. `owner`: see
  /// Executor::mayJoin().
  ExecutionSession(Executor& executor, std::string peer, std::string owner);
  ~ExecutionSession() override;

  /// `incarnation`, `rowsAt`: as ClientOptions has them.
  kj::Promise<Result<JoinInfo>> join(const Membership& membership, uint64_t incarnation,
                                     std::vector<uint64_t> rowsAt);
  kj::Promise<Result<ForwardDone>> forward(ForwardCall call);
  /// True.
  kj::Promise<Result<bool>> backward(uint64_t context, std::vector<NamedTensor> outputGradients,
                                     int8_t priority);
  /// Of the sum of the gradients of `context` and of those in `also`, which all end with it.
  kj::Promise<Result<PushInfo>> step(uint64_t context, Step step, uint32_t samples,
                                     const std::vector<uint64_t>& also = {});
  /// Copies; of the parameters and tables with these names, none named: of all. See gradientTensors().
  Result<std::vector<NamedTensor>> gradients(uint64_t context, const std::vector<std::string>& names) const;
  void drop(uint64_t context) { contexts_.erase(context); }
  kj::Promise<Result<bool>> leave();
  /// The peer is gone, or is to go: no call may follow.
  void close();
  /// No call is served any more.
  bool over() const { return over_.has_value(); }

  /// Ends the contexts of which no call came since `before`.
  void dropIdle(std::chrono::steady_clock::time_point before) override;
  RemoteTrainerStatus status() const override;

 private:
  struct Context;
  using ContextPtr = std::shared_ptr<Context>;
  using Inputs = std::shared_ptr<std::vector<NamedTensor>>;

  Result<ContextPtr> begin(ForwardCall& call);
  /// The context for a call that is of what has come of it: a pass, or a gradient.
  Result<ContextPtr> find(uint64_t context) const;
  /// The contexts whose gradients make one step, `context` first; an Error where one of them has none yet.
  Result<std::vector<ContextPtr>> findAll(uint64_t context, const std::vector<uint64_t>& also) const;
  Status usable() const;
  /// For the log.
  LogFields fields(std::string event) const;
  /// Ends the context, unless another has its number by now; gives the error, by which the session may be
  /// over, or that by which it is.
  Error failed(const ContextPtr& context, const Error& error);
  /// Ends the context, unless another has its number by now.
  void end(const ContextPtr& context);
  kj::Promise<Result<std::shared_ptr<ForwardPass>>> compute(const ContextPtr& context,
                                                            Executor::CallSlot slot, const ForwardCall& call,
                                                            const Inputs& inputs,
                                                            Result<PulledWeights> weights);
  Result<ForwardDone> finish(const ContextPtr& context, bool training,
                             Result<std::shared_ptr<ForwardPass>> pass);

  Executor& executor_;
  const std::string peer_, owner_;
  std::shared_ptr<DaemonSession> daemon_;  // null before join() and after close()
  std::shared_ptr<DaemonSession> before_;  // that the executor had kept of this trainer, while it joins
  uint64_t incarnation_ = 0;
  bool admitted_ = false;  // the executor counts it
  bool joined_ = false;    // the daemon has let it in
  Rank rank_;
  std::optional<Error> over_;  // why no call is served any more
  std::map<uint64_t, ContextPtr> contexts_;
  std::deque<uint64_t> expired_;  // the last that dropIdle() ended
  Step newest_;                   // that is pushed, or was with success
  uint64_t forwards_ = 0, steps_ = 0, staleness_ = 0;
};

}  // namespace psd
