#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "server/membership/answered_pushes.h"
#include "server/push/push_slice.h"
#include "server/push/step_push.h"
#include "server/store/applied_push.h"

namespace psd {

/// What of a trainer's gradients has come, what the policies have answered, and what became of each step: so
/// that a slice that comes again is answered and not applied again, and no step overtakes one before it.
/// Decides and remembers; hands nothing to a policy and waits for nothing. Pure; owned by one thread.
///
/// A slice goes through find(); if it is fresh, through admit(); once its policy has answered, through
/// answered(). When the slice that completed the step is answered and nothing of the step waits, conclude()
/// tells what became of all, and closeIfOver() forgets the step.
class PushLedger {
 public:
  /// What came of a slice before.
  enum class Known {
    nothing,    ///< the slice is new
    over,       ///< what became of the shard's part is known: `answer`
    received,   ///< the policy has the slice, and the step lacks others: `answer`
    refused,    ///< the policy has refused the part: `answer`
    undecided,  ///< the step is complete and waits
    atWork,     ///< the policy has not answered
  };
  struct Standing {
    Known known = Known::nothing;
    std::optional<Result<PushAnswer>> answer;
    std::shared_ptr<StepPush> step;  ///< of undecided and atWork
  };
  /// Where a new slice was entered.
  struct Admitted {
    std::shared_ptr<StepPush> step;
    std::shared_ptr<PartPush> part;
    /// Of StepPush::completions, where the slice completes the step; 0: it does not.
    uint64_t completion = 0;
  };

  /// What a gradient may be of in place of all shards.
  struct PartsAlone {
    bool fragments = false;  ///< those of one group
    size_t rowShards = 0;    ///< the last so many shards alone, or all before these; 0: neither
  };

  /// `groups`: by shard, the parameter group, whose policy may take its shards together. A gradient has a
  /// part of each shard; what else it may have, `alone` says.
  PushLedger(std::vector<uint32_t> groups, UpdatesUnderWay& underWay, PartsAlone alone);

  /// What became of the pushes that `saved`, one per range of the shard, tells of. `completes`: steps that
  /// some ranges have yet to get may come (UpdatePolicy::completesPushes()).
  void recall(uint32_t shard, const std::vector<AppliedPush>& saved, bool completes);

  /// What comes from now on is of a session that is there.
  void beginSession() { sessionEnded_ = false; }
  /// The trainer counts as gone: forgets what was gathered of unfinished steps, which may come anew.
  void endSession();
  bool sessionEnded() const { return sessionEnded_; }
  /// Nothing of the step is taken that comes from now on.
  void drop(Step step) { dropped_.add(step, {PushOutcome::late}); }

  Standing find(const SliceHead& slice) const;
  /// What a slice of an undecided step is told; nothing while that is not known. `answer` of a Standing that
  /// is over, received or refused.
  std::optional<Standing> decided(const StepPush& step, uint32_t shard) const;
  /// The gradient of a step; null: it has not begun, or is over.
  std::shared_ptr<StepPush> begun(Step step) const;
  /// Whether a slice of `step` begins a gradient, or begins one anew that its session's end had closed.
  bool begins(Step step) const;
  /// A step up to `newest`, begun before the trainer was lost, that policies are still at: only then is it
  /// known what of it is to come again, and newer steps may not overtake that. Null: none.
  std::shared_ptr<StepPush> stillAtWork(Step newest) const;
  /// Enters a slice that waits for stillAtWork(), or behind one that does, until what this gives goes; which
  /// must not outlive the ledger.
  std::shared_ptr<const void> waits(Step step);
  /// Whether a slice of `step` would go ahead of one of an earlier step that waits so.
  bool overtakes(Step step) const { return !waiting_.empty() && *waiting_.begin() < step; }

  /// Enters a fresh slice; a later step gives up an unfinished one, unless they are of different groups
  /// alone. ErrorCode::badSlice for one that does not go with what came before; ErrorCode::shuttingDown where
  /// it begins a gradient and none is to begin.
  Result<Admitted> admit(const SliceHead& slice, bool mayBegin);
  /// The policy has answered an admitted slice. One that it refused has changed nothing and may come again,
  /// unless the policy had all of the part.
  void answered(StepPush& step, const SliceHead& slice, const Result<PushAnswer>& answer);
  /// The reply to the slice of `shard` that completed the step, which its policy answered `last`: the
  /// outcomes of the shards in `waited` are known by now, and so is then what became of every part.
  PushReply conclude(StepPush& step, uint32_t shard, const Result<PushAnswer>& last,
                     const std::vector<uint32_t>& waited);
  /// Forgets a step of which all is answered. False: it is not over, or was forgotten already.
  bool closeIfOver(const std::shared_ptr<StepPush>& step);

  /// Of a step with an outcome: whether anything of it is in the model.
  bool applied(const StepPush& step) const;
  /// Of a step that comes again: whether anything of it is in the model; nothing while a shard may still get
  /// it.
  std::optional<bool> appliedBefore(Step step) const;

 private:
  Result<std::shared_ptr<StepPush>> stepOf(const SliceHead& slice, bool mayBegin);
  /// Whether a fresh slice goes with what came before; ErrorCode::badSlice.
  Status fits(const SliceHead& slice) const;
  /// The group that a slice's gradient is of alone; nothing: of all.
  std::optional<uint32_t> groupOf(const SliceHead& slice) const;
  /// Gives up the unfinished steps before this one that have shards in common with it, which is of `group`
  /// alone: no slice of theirs is taken any more.
  void giveUpBefore(Step number, std::optional<uint32_t> group);
  std::optional<PushAnswer> answerOf(Step step, uint32_t shard) const;
  void abandon(StepPush& step);
  /// Forgets the parts of an ended session that never reach the model, once the policies are done with them.
  void letGo(StepPush& step);
  /// Whether the policy has all of the group that a shard belongs to: then the gradient counts, whoever
  /// leaves.
  bool handedOver(const StepPush& step, uint32_t shard) const;
  /// How many other shards of the slice's group have their parts of the step decided.
  size_t decidedBeside(const SliceHead& slice) const;
  /// Enters what became of the parts. Gives the shards that dropped theirs.
  std::vector<uint32_t> enterOutcomes(StepPush& step, const std::vector<uint32_t>& waited);

  const std::vector<uint32_t> groups_;  // by shard
  std::vector<uint32_t> sizes_;  // by group, its shards; empty: every gradient has a part of each shard
  UpdatesUnderWay& underWay_;
  const size_t rowShards_;  // 0: each gradient is of all shards
  bool sessionEnded_ = false;
  std::map<Step, std::shared_ptr<StepPush>> steps_;   // steps that lack slices or answers
  std::vector<Step> newest_;                          // by shard, the newest step that has begun
  std::vector<AnsweredPushes<PushAnswer>> ofShards_;  // what became of each shard's part
  std::multiset<Step> waiting_;                       // steps of the slices that wait so
  AnsweredPushes<PushAnswer> dropped_;                // steps of which nothing is taken that comes now
};

}  // namespace psd
