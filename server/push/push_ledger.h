#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/membership/answered_pushes.h"
#include "server/push/push_slice.h"
#include "server/push/step_push.h"
#include "server/store/applied_push.h"

namespace psd {

/// Records which slices of a trainer's gradients have arrived, how the policies answered, and the outcome of
/// each step. With it a repeated slice is answered without being applied again, and no step overtakes an
/// earlier one. Bookkeeping only: it calls no policy and never waits. Owned by one thread.
///
/// A slice goes through find(); if it is new, through admit(); once its policy has answered, through
/// answered(). When the slice that completed the step is answered and nothing of the step is pending,
/// conclude() computes the reply, and closeIfOver() removes the step.
class PushLedger {
 public:
  /// What is known of a slice that may have been received earlier.
  enum class Known {
    nothing,     ///< the slice is new
    over,        ///< the outcome of the shard's part is known: `answer`
    received,    ///< the policy has the slice; the step still lacks others: `answer`
    refused,     ///< the policy rejected the part: `answer`
    undecided,   ///< the step is complete but its outcome is pending
    withPolicy,  ///< the policy has not answered yet
  };
  struct Lookup {
    Known known = Known::nothing;
    std::optional<Result<PushAnswer>> answer;
    std::shared_ptr<StepPush> step;  ///< set for undecided and withPolicy
  };
  /// The result of admit().
  struct Admitted {
    std::shared_ptr<StepPush> step;
    std::shared_ptr<PartPush> part;
    /// Value of StepPush::completions if the slice completes the step, else 0.
    uint64_t completion = 0;
  };

  /// Subsets of the shards that one gradient may cover.
  struct PartialGradients {
    bool fragments = false;  ///< the shards of one parameter group
    size_t rowShards = 0;    ///< the last `rowShards` shards alone, or all others alone; 0: neither
  };

  /// `groups`: the parameter group of each shard; a policy may process the shards of a group together. A
  /// gradient has one part per shard, or covers one of the subsets in `alone`.
  PushLedger(std::vector<uint32_t> groups, UpdatesInFlight& underWay, PartialGradients alone);

  /// Restores outcomes from `saved`, one entry per range of the shard. `completes`: steps that some ranges
  /// still lack may be pushed again (UpdatePolicy::Properties::completesPushes).
  void restore(uint32_t shard, const std::vector<AppliedPush>& saved, bool completes);

  /// Slices from now on belong to a live session.
  void beginSession() { sessionEnded_ = false; }
  /// The trainer is lost or has left: discards the slices of incomplete steps, which may be pushed again.
  void endSession();
  bool sessionEnded() const { return sessionEnded_; }
  /// Rejects all slices of the step from now on.
  void drop(Step step) { dropped_.add(step, {PushOutcome::late}); }

  Lookup find(const SliceHead& slice) const;
  /// The answer to a slice of an undecided step; nothing while the outcome is pending. `answer` is set as for
  /// a Lookup of over, received or refused.
  std::optional<Lookup> decided(const StepPush& step, uint32_t shard) const;
  /// The gradient of a step; null if it has not started or is over.
  std::shared_ptr<StepPush> begun(Step step) const;
  /// Whether a slice of `step` starts a gradient, or reopens one that was closed by the end of its session.
  bool begins(Step step) const;
  /// A step up to `newest` that was closed when the trainer was lost but is still with a policy; null: none.
  /// Until the policy is done it is unknown which slices must be sent again, and newer steps must not
  /// overtake it.
  std::shared_ptr<StepPush> unfinishedClosedStep(Step newest) const;
  /// Registers a slice that waits for unfinishedClosedStep(), or behind one that does, until the returned
  /// handle is dropped. The handle must not outlive the ledger.
  std::shared_ptr<const void> waits(Step step);
  /// Whether a slice of `step` would overtake a waiting slice of an earlier step.
  bool overtakes(Step step) const { return !waiting_.empty() && *waiting_.begin() < step; }

  /// Registers a new slice. A later step abandons an incomplete earlier one unless they cover different
  /// parameter groups. ErrorCode::badSlice if it is inconsistent with earlier slices; ErrorCode::shuttingDown
  /// if it would start a gradient and !mayBegin.
  Result<Admitted> admit(const SliceHead& slice, bool mayBegin);
  /// Records the policy's answer to an admitted slice. A rejected slice changed nothing and may be sent
  /// again, unless the policy already had the complete part.
  void answered(StepPush& step, const SliceHead& slice, const Result<PushAnswer>& answer);
  /// The reply to the slice of `shard` that completed the step and that its policy answered with `last`. The
  /// outcomes of the shards in `waited` are known by now, so every part can be decided.
  PushReply conclude(StepPush& step, uint32_t shard, const Result<PushAnswer>& last,
                     const std::vector<uint32_t>& waited);
  /// Removes a step whose slices are all answered. False if it is not over or was already removed.
  bool closeIfOver(const std::shared_ptr<StepPush>& step);

  /// For a step with an outcome: whether any part of it is in the model.
  bool applied(const StepPush& step) const;
  /// For a repeated step: whether any part of it is in the model; nothing while a shard may still apply it.
  std::optional<bool> appliedBefore(Step step) const;
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  Result<std::shared_ptr<StepPush>> stepOf(const SliceHead& slice, bool mayBegin);
  /// ErrorCode::badSlice if a new slice is inconsistent with earlier ones.
  Status checkConsistent(const SliceHead& slice) const;
  /// The only parameter group that the slice's gradient covers; nothing: it covers all.
  std::optional<uint32_t> groupOf(const SliceHead& slice) const;
  /// Abandons incomplete steps before `number` that share shards with it; no more of their slices are
  /// accepted. `group`: the only group that step `number` covers.
  void abandonBefore(Step number, std::optional<uint32_t> group);
  std::optional<PushAnswer> answerOf(Step step, uint32_t shard) const;
  void abandon(StepPush& step);
  /// Discards the parts of an ended session that will never reach the model, once the policies are done with
  /// them.
  void discardParts(StepPush& step);
  /// Whether the policy has every part of the shard's parameter group; the gradient is then applied even if
  /// the trainer leaves.
  bool handedOver(const StepPush& step, uint32_t shard) const;
  /// Number of other shards in the slice's group whose parts of this step are decided.
  size_t decidedSiblings(const SliceHead& slice) const;
  /// Records the outcomes of all parts and returns the shards that dropped theirs.
  std::vector<uint32_t> enterOutcomes(StepPush& step, const std::vector<uint32_t>& waited);

  const std::vector<uint32_t> groups_;  // by shard
  std::vector<uint32_t> sizes_;         // shards per group; empty: every gradient has a part for each shard
  UpdatesInFlight& underWay_;
  const size_t rowShards_;  // 0: every gradient covers all shards
  bool sessionEnded_ = false;
  std::map<Step, std::shared_ptr<StepPush>> steps_;   // steps that lack slices or answers
  std::vector<Step> newest_;                          // by shard, the newest step that has started
  std::vector<AnsweredPushes<PushAnswer>> ofShards_;  // by shard, the outcomes of recent parts
  std::multiset<Step> waiting_;                       // steps of the slices registered by waits()
  AnsweredPushes<PushAnswer> dropped_;                // steps whose slices are rejected
};

}  // namespace psd
