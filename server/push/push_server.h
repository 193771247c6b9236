#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "server/loop/event_loop.h"
#include "server/membership/answered_pushes.h"
#include "server/membership/session_standing.h"
#include "server/policy/served_model.h"
#include "server/push/step_push.h"

namespace psd {

/// One slice of a trainer's gradient, however it came. A value type.
struct PushSlice {
  Step step;
  uint32_t shard = 0;
  uint64_t offset = 0;         ///< elements, from the shard's begin
  Version basis;               ///< what the gradient was computed from
  uint32_t samples = 0;        ///< examples behind the gradient
  Attachment attachment = {};  ///< that it came over
  Gradient gradient = std::span<const float>();
  std::shared_ptr<const void> held = nullptr;  ///< keeps the gradient readable; the server's home drops it
  /// Keeps the DeviceRing in which the gradient lies, where the trainer may change it: to be copied first.
  /// Null elsewhere.
  std::shared_ptr<const void> ring = nullptr;
  /// For the server alone. Set while a slice is copied first: until `turn` goes, the slices after this one
  /// wait to be looked at, so that they do not overtake it.
  std::shared_ptr<const void> turn = nullptr;
};

/// What a slice is told.
struct PushReply {
  Result<PushAnswer> answer;           ///< to the slice that completes a step: the worst of what waited
  std::vector<uint32_t> dropped = {};  ///< see PushResult.dropped in the schema
};

/// Takes the gradients of one life of a trainer: checks each slice, joins the slices of a step to an update
/// of every shard, hands them to the policies, and remembers what came of it, so that a slice that comes
/// again is answered and not applied again. It spans the trainer's connections and belongs to the loop of the
/// first of them, its home. Any thread may hold it; the last one's letting go ends it at home.
class PushServer : public std::enable_shared_from_this<PushServer> {
 public:
  /// By shard, what each of its ranges has of this trainer, as a daemon before this one saved it.
  using Saved = std::vector<std::vector<AppliedPush>>;

  /// `saved`: one per shard of the model, or none at all.
  static std::shared_ptr<PushServer> make(LifeId life, std::shared_ptr<EventLoop> home,
                                          std::shared_ptr<ServedModel> model,
                                          std::shared_ptr<SessionCounters> counters, const Saved& saved);

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
  /// What is to be done with a slice that is new.
  struct Admitted {
    std::shared_ptr<StepPush> step;
    std::shared_ptr<PartPush> part;
    uint64_t completion = 0;  ///< of StepPush::completions, where the slice completes the step
  };

  PushServer(LifeId life, std::shared_ptr<EventLoop> home, std::shared_ptr<ServedModel> model,
             std::shared_ptr<SessionCounters> counters);
  /// What became of the pushes that `saved` tells of; those that some ranges have yet to get may come.
  void recall(uint32_t shard, const std::vector<AppliedPush>& saved);
  template <class Work>
  auto atHome(Work work) -> decltype(work());
  template <class Work>
  void postHome(Work work);

  Status check(const PushSlice& slice, const Limits& limits) const;
  PushReply refused(const Error& error) const;

  // What follows runs at home.
  kj::Promise<PushReply> pushHere(PushSlice slice);
  kj::Promise<PushReply> take(PushSlice slice);
  /// pushHere() for a slice that is in a ring, in the order of these calls.
  kj::Promise<PushReply> pushFromRing(PushSlice slice);
  /// Copies the gradient to where the slice's policy takes it; then pushHere(), once `turn` has resolved.
  kj::Promise<PushReply> pushCopied(PushSlice slice, kj::Promise<void> turn);
  bool takesDeviceGradient(const PushSlice& slice) const;
  kj::Promise<void> whenLandedHere();
  void endSessionHere();
  /// The answer to a slice that came before, which it may move from; nothing if it is new.
  kj::Maybe<kj::Promise<PushReply>> answerAgain(PushSlice& slice);
  /// What is known for good of a shard's part of a step.
  std::optional<PushAnswer> known(Step step, uint32_t shard) const;
  /// The reply to a slice that came again, whose answer is known.
  kj::Promise<PushReply> repeated(uint32_t shard, const PushAnswer& answer);
  /// The reply to a slice that came again, once it is known what became of the shard's part of its step.
  kj::Promise<PushReply> onceDecided(std::shared_ptr<StepPush> step, uint32_t shard);
  /// What a new slice belongs to, with the slice entered; a later step gives up an unfinished one.
  Result<Admitted> admit(const PushSlice& slice);
  Result<std::shared_ptr<StepPush>> stepOf(const PushSlice& slice);
  /// The push of a step; null: it has not begun, or is over.
  std::shared_ptr<StepPush> begun(Step step) const;
  /// A step up to this one, begun before the trainer was lost, that policies are still at: only then is it
  /// known what of it is to come again, and newer steps may not overtake that. Null: none.
  std::shared_ptr<StepPush> stillAtWork(Step newest) const;
  std::shared_ptr<PartPush> open(const PushSlice& slice) const;
  /// How many other shards of the slice's group have their parts of the step decided.
  size_t decidedBeside(const PushSlice& slice) const;
  /// The policy has answered a slice. One that it refused has changed nothing and may come again, unless the
  /// policy had all of the part.
  void answered(StepPush& step, PartPush& part, const PushSlice& slice, const Result<PushAnswer>& answer);
  /// Gives up an unfinished step, whose session has ended.
  void abandon(StepPush& step);
  /// Forgets the parts of ended sessions that never reach the model, once the policy is done with them.
  void letGo(StepPush& step);
  /// Whether the policy has all of the group that a shard belongs to, which then counts, whoever leaves.
  bool handedOver(const StepPush& step, uint32_t shard) const;
  /// Forgets a step once all of it is answered.
  void closeIfOver(const std::shared_ptr<StepPush>& step);
  /// Tells the control loop what became of the samples behind a step, where samples are dealt.
  void tellOfSamples(const StepPush& step);
  void tellOfSamples(Step step, bool applied);
  /// Tells the control loop of the samples behind a step that comes again, if that is over in all shards: a
  /// restored plan may not know.
  void tellOfSamplesAgain(Step step);
  /// The reply to the slice that completes a step, which its policy answered `last`: once everything that
  /// waits is known.
  kj::Promise<PushReply> settle(std::shared_ptr<StepPush> step, uint32_t shard, Result<PushAnswer> last);
  /// Notes what became of the step, now that it is known of the parts that waited, those of shards `waited`.
  /// Gives the shards that dropped their part.
  std::vector<uint32_t> settleParts(StepPush& step, const std::vector<uint32_t>& waited);
  /// The reply once nothing that it tells of can be lost any more. All replies, those to slices that come
  /// again too, go through here last.
  kj::Promise<PushReply> whenDurable(uint32_t shard, PushReply reply) const;
  void count(const PushSlice& slice);
  void count(const PushAnswer& answer);
  /// Counts a gradient of which everything is known, by the worst that became of it in a shard.
  void countOver(const StepPush& step);
  void landed();

  const LifeId life_;
  const std::shared_ptr<EventLoop> home_;
  const std::shared_ptr<ServedModel> model_;
  const std::shared_ptr<SessionCounters> counters_;
  TrainerRef trainer_;
  bool ended_ = false;                                // the trainer's session has ended
  std::map<Step, std::shared_ptr<StepPush>> steps_;   // steps that lack slices or answers
  std::vector<Step> newest_;                          // per shard, the newest step that has begun
  std::vector<AnsweredPushes<PushAnswer>> ofShards_;  // what became of each shard's part
  AnsweredPushes<PushAnswer> dropped_;                // steps of which nothing is taken that comes now
  uint64_t inFlight_ = 0;                             // slices with the policy, or on their way to it
  kj::Maybe<kj::ForkedPromise<void>> turn_;           // of the next slice from a ring; null: of the first
  std::vector<kj::Own<kj::PromiseFulfiller<void>>> waitForLanding_;
};

}  // namespace psd
