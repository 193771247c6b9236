#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/types/bridge.h"
#include "server/loop/event_loop.h"
#include "server/push/push_ledger.h"
#include "server/push/push_meter.h"
#include "server/push/ring_intake.h"
#include "server/push/step_outcomes.h"

namespace psd {

/// Takes the gradients of one process of a trainer: checks each slice, has a PushLedger tell what is new of
/// it, hands that to the policies, and answers once what became of it is known and cannot be lost any more.
/// It spans the trainer's connections and belongs to the loop of the first of them, its home. Any thread may
/// hold it; the last one's letting go ends it at home.
class PushServer : public std::enable_shared_from_this<PushServer> {
 public:
  /// Upper bound of what is held of a trainer's pushes to a shard, and its pulls from it, in its session and
  /// policy: AnsweredPushes::kMost answers, and the parts of the steps under way.
  static constexpr uint64_t kShardBytes = 4096;
  static_assert(AnsweredPushes<PushAnswer>::kMost * sizeof(AnsweredPushes<PushAnswer>::Entry) + 768 <=
                kShardBytes);

  /// By shard, what each of its ranges has of this trainer, as a daemon before this one saved it.
  using Saved = std::vector<std::vector<AppliedPush>>;

  /// `saved`: one per shard of the model, or none at all. `outcomes` is told what becomes of each step.
  static std::shared_ptr<PushServer> make(ProcessId process, std::shared_ptr<EventLoop> home,
                                          std::shared_ptr<ServedModel> model,
                                          std::shared_ptr<SessionCounters> counters, const Saved& saved,
                                          StepOutcomes& outcomes);

  /// The policy's answer to one slice, or why it is refused. Where a policy lets a gradient wait for other
  /// trainers, the last slice of the step waits and all others are answered at once, so that a peer with few
  /// slices in flight gets all of them in; what `slice` holds is dropped before it waits. From any loop,
  /// which checks the slice by its own `limits`; it resolves there.
  kj::Promise<PushReply> push(PushSlice slice, const Limits& limits);
  /// Whether the calling loop is the home.
  bool isHome() const { return home_->isHere(); }

  /// Resolves when no slice is with the policy. From any loop.
  kj::Promise<void> whenLanded();

  /// What is pushed from now on is this session's. From any thread with an event loop, like endSession().
  void beginSession(TrainerRef trainer);
  /// The trainer counts as gone: lets go of what was gathered of unfinished updates. It may come back and
  /// push them anew.
  void endSession();
  /// The samples behind a step were dealt again: if it comes again, it is dropped.
  void drop(Step step);

 private:
  PushServer(ProcessId process, std::shared_ptr<EventLoop> home, std::shared_ptr<ServedModel> model,
             std::shared_ptr<SessionCounters> counters, const Saved& saved, StepOutcomes& outcomes);
  template <class Work>
  auto atHome(Work work) -> decltype(work());
  template <class Work>
  void postHome(Work work);

  Status check(const PushSlice& slice, const Limits& limits) const;
  PushReply refused(const Error& error) const;

  // What follows runs at home, in the order in which a slice goes through it.

  /// Copies what lies in a ring first, and waits while no gradient may begin.
  kj::Promise<PushReply> arrive(PushSlice slice);
  kj::Promise<PushReply> waitAtGate(PushSlice slice, kj::Promise<void> opened);
  /// Goes on with a slice whose gradient was copied.
  kj::Promise<PushReply> onceCopied(kj::Promise<Result<PushSlice>> copied);
  /// Looks the slice up: answers it if it came before, else takes it.
  kj::Promise<PushReply> lookUp(PushSlice slice);
  /// The answer to a slice that came before, which it may move from; nothing if it is new.
  kj::Maybe<kj::Promise<PushReply>> answerAgain(PushSlice& slice);
  /// lookUp() when `changed` resolves. `waits`: see PushLedger::waits().
  kj::Promise<PushReply> lookUpAgain(kj::Promise<void> changed, PushSlice slice,
                                     std::shared_ptr<const void> waits);
  /// The reply to a slice that came again, once it is known what became of the shard's part of its step.
  kj::Promise<PushReply> onceDecided(std::shared_ptr<StepPush> step, uint32_t shard);
  kj::Promise<PushReply> repeated(uint32_t shard, const Result<PushAnswer>& answer);
  /// Enters a new slice and hands it to its policy.
  kj::Promise<PushReply> take(PushSlice slice);
  /// Has the part's policy take the slice, which stays as it is until the answer is there.
  kj::Promise<Result<PushAnswer>> handOver(PartPush& part, const PushSlice& slice);
  /// The reply to a slice that its policy answered `last`. To the slice that completes a step: once every
  /// slice is answered, and everything that waits is known.
  kj::Promise<PushReply> settle(std::shared_ptr<StepPush> step, uint32_t shard, uint64_t completion,
                                Result<PushAnswer> last);
  /// What follows from the answer to a slice; `settles`: which is that to its whole step.
  void close(const std::shared_ptr<StepPush>& step, bool settles, const PushReply& reply);
  /// The reply once nothing that it tells of can be lost any more. All replies, those to slices that come
  /// again too, go through here last.
  kj::Promise<PushReply> whenDurable(uint32_t shard, PushReply reply) const;

  /// Whether pushes are differences that a bridge adds, and no trainer's.
  bool ofBridge() const { return trainer_.rank == kBridgeRank; }
  bool takesDeviceGradient(const PushSlice& slice) const;
  /// Tells the control loop what became of the samples behind a step.
  void tellOfSamples(Step step, bool applied);
  /// Counts a slice in that landed() counts out.
  void underWay();
  void landed();
  kj::Promise<void> whenLandedHere();

  const ProcessId process_;
  const std::shared_ptr<EventLoop> home_;
  const std::shared_ptr<ServedModel> model_;
  const std::shared_ptr<SessionCounters> counters_;
  StepOutcomes& outcomes_;
  PushLedger ledger_;
  PushMeter meter_;
  RingIntake rings_;
  TrainerRef trainer_;
  uint64_t inFlight_ = 0;  // slices with the policy, or on their way to it
  std::vector<kj::Own<kj::PromiseFulfiller<void>>> waitForLanding_;
};

}  // namespace psd
