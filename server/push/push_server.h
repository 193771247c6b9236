#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/loop/event_loop.h"
#include "server/push/push_ledger.h"
#include "server/push/push_meter.h"
#include "server/push/ring_intake.h"
#include "server/push/step_outcomes.h"

namespace psd {

/// Accepts the gradients of one trainer process: checks each slice, asks a PushLedger what is new in it,
/// passes that to the policies, and answers once the outcome is known and durable. It spans the trainer's
/// connections and belongs to the loop of the first of them, its home. Any thread may hold a reference;
/// destruction happens at home.
class PushServer : public std::enable_shared_from_this<PushServer> {
 public:
  /// Upper bound, per shard, of the memory that a session and its policy hold for a trainer's pushes and
  /// pulls: AnsweredPushes::kMost answers, and the parts of the steps in flight.
  static constexpr uint64_t kShardBytes = 4096;
  /// Upper bound, per tensor and per table of each row shard, of the hyperparameters of two steps.
  static constexpr uint64_t kTensorBytes = 256;
  static_assert(AnsweredPushes<PushAnswer>::kMost * sizeof(AnsweredPushes<PushAnswer>::Entry) + 768 <=
                kShardBytes);

  /// By shard, what each of its ranges has applied from this trainer, as saved by a previous daemon.
  using Saved = std::vector<std::vector<AppliedPush>>;

  /// `saved`: one entry per shard of the model, or empty. `outcomes` is notified of the outcome of each step.
  static std::shared_ptr<PushServer> make(ProcessId process, std::shared_ptr<EventLoop> home,
                                          std::shared_ptr<ServedModel> model,
                                          std::shared_ptr<SessionCounters> counters, const Saved& saved,
                                          StepOutcomes& outcomes);

  /// The policy's answer to one slice, or the error that rejects it. Where a policy makes a gradient wait for
  /// other trainers, only the last slice of the step waits and all others are answered immediately, so that a
  /// peer with few slices in flight can send all of them; what `slice` holds is released before the wait.
  /// Call from any loop, with the `limits` of that loop; the promise resolves there.
  kj::Promise<PushReply> push(PushSlice slice, const Limits& limits);
  /// Whether the calling loop is the home loop.
  bool isHome() const { return home_->isHere(); }

  /// Resolves when no slice is with a policy. Call from any loop.
  kj::Promise<void> whenPushesDrained();

  /// Pushes from now on belong to this session. Call from any thread with an event loop, like endSession().
  void beginSession(TrainerRef trainer);
  /// The trainer is lost or has left: discards the slices of incomplete updates. It may reconnect and push
  /// them again.
  void endSession();
  /// The samples of a step were reassigned: the step is dropped if it is pushed again.
  void drop(Step step);

 private:
  PushServer(ProcessId process, std::shared_ptr<EventLoop> home, std::shared_ptr<ServedModel> model,
             std::shared_ptr<SessionCounters> counters, const Saved& saved, StepOutcomes& outcomes);
  template <class Work>
  auto runAtHome(Work work) -> decltype(work());
  template <class Work>
  void postToHome(Work work);

  Status check(const PushSlice& slice, const Limits& limits) const;
  PushReply refused(const Error& error) const;

  // The following run on the home loop, in the order in which a slice passes through them.

  /// Copies a slice that lies in a ring; waits while the gate blocks new gradients.
  kj::Promise<PushReply> arrive(PushSlice slice);
  kj::Promise<PushReply> waitAtGate(PushSlice slice, kj::Promise<void> opened);
  /// Continues with a slice whose gradient was copied.
  kj::Promise<PushReply> continueCopied(kj::Promise<Result<PushSlice>> copied);
  /// Answers a repeated slice, or takes a new one.
  kj::Promise<PushReply> lookUp(PushSlice slice);
  /// The answer to a repeated slice, which it may move from; nothing if the slice is new.
  kj::Maybe<kj::Promise<PushReply>> answerRepeated(PushSlice& slice);
  /// lookUp() once `changed` resolves. `waits`: see PushLedger::waits().
  kj::Promise<PushReply> lookUpAfter(kj::Promise<void> changed, PushSlice slice,
                                     std::shared_ptr<const void> waits);
  /// The reply to a repeated slice, once the outcome of the shard's part is known.
  kj::Promise<PushReply> onceDecided(std::shared_ptr<StepPush> step, uint32_t shard);
  kj::Promise<PushReply> repeated(uint32_t shard, const Result<PushAnswer>& answer);
  /// Registers a new slice and passes it to its policy.
  kj::Promise<PushReply> take(PushSlice slice);
  /// Passes the slice, which stays valid until the answer, to the part's policy.
  kj::Promise<Result<PushAnswer>> handOver(PartPush& part, const PushSlice& slice);
  /// The reply to a slice that its policy answered with `last`. For the slice that completes a step: once
  /// every slice is answered and all pending outcomes are known.
  kj::Promise<PushReply> settle(std::shared_ptr<StepPush> step, uint32_t shard, uint64_t completion,
                                Result<PushAnswer> last);
  /// Bookkeeping after the answer to a slice; `settles`: it is the answer to the whole step.
  void close(const std::shared_ptr<StepPush>& step, bool settles, const PushReply& reply);
  /// Delays the reply until everything that it reports is durable. Every reply passes through here last,
  /// including those to repeated slices.
  kj::Promise<PushReply> whenDurable(uint32_t shard, PushReply reply) const;

  /// Whether pushes are differences from a bridge instead of a trainer's gradients.
  bool ofBridge() const { return trainer_.bridges; }
  bool takesDeviceGradient(const PushSlice& slice) const;
  /// Reports the outcome of a step's samples to the control loop.
  void reportOutcome(Step step, bool applied);
  /// Counts a slice as in flight until endInFlight().
  void underWay();
  void endInFlight();
  kj::Promise<void> whenIdleHere();

  const ProcessId process_;
  const std::shared_ptr<EventLoop> home_;
  const std::shared_ptr<ServedModel> model_;
  const std::shared_ptr<SessionCounters> counters_;
  StepOutcomes& outcomes_;
  PushLedger ledger_;
  PushMeter meter_;
  RingIntake rings_;
  TrainerRef trainer_;
  uint64_t inFlight_ = 0;  // slices with a policy, or on their way to it
  std::vector<kj::Own<kj::PromiseFulfiller<void>>> idleWaiters_;
};

}  // namespace psd
