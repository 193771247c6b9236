#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kj/mutex.h>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "common/types/range_set.h"
#include "common/types/samples.h"
#include "server/membership/trainer.h"

namespace psd {

/// Samples assigned to a step of a trainer.
struct SampleAssignment : HeldSamples {
  TrainerProcess process;
  uint64_t number = 0;  ///< rises with each assignment of a plan
  bool operator==(const SampleAssignment&) const = default;
};

/// The parameters of a plan. `number` counts the plans of this daemon and its predecessors.
struct PlanTerms {
  uint64_t number = 0;  ///< 0: there was none yet
  uint64_t samples = 0, epochs = 0;
  uint64_t firstEpoch = 0;  ///< the epoch in which it began
  bool operator==(const PlanTerms&) const = default;
};

/// Samples whose gradient may be in a saved model.
struct SavedAssignment : SampleAssignment {
  static constexpr uint32_t kAll = UINT32_MAX;
  uint32_t doubtful = kAll;  ///< the first `doubtful` shards may lack the gradient; the others have it
  bool operator==(const SavedAssignment&) const = default;
};

/// The saved form of a plan. A value type.
struct SavedSamples {
  PlanTerms terms;
  bool closed = false;
  uint64_t assignments = 0;  ///< number of assignments so far
  RangeSet free;             ///< not assigned, or returned: index = epoch × samples + place
  std::vector<SavedAssignment>
      underWay;  ///< including those completed while shards were being saved; without numbers
  bool operator==(const SavedSamples&) const = default;
};

/// Assigns the samples of every epoch to trainers on request, so that each sample is in one applied gradient
/// (Li et al. 2014; DLRover): slow trainers take fewer, and samples of a departed trainer, or of a dropped
/// gradient, are assigned again before any new ones. A range belongs to a step of a trainer; a repeated
/// request for the same step returns the same range. Plans follow one another. Pure, like Roster.
///
/// A restored plan contains assignments to trainers of the previous daemon: these are *away* until the
/// trainers return, or are no longer awaited.
class SamplePlan {
 public:
  SamplePlan() = default;
  /// Restores a saved plan; its open assignments are away. ErrorCode::invalidArgument if it is inconsistent.
  static Result<SamplePlan> restore(const SavedSamples& saved);

  /// Starts the next plan: `samples` and `epochs` above 0. Discards the previous plan.
  Status begin(uint64_t samples, uint64_t epochs, uint64_t firstEpoch = 0);
  /// Starts a plan with terms from another daemon. Discards the previous plan.
  Status begin(const PlanTerms& terms);
  bool begun() const { return terms_.number != 0; }
  const PlanTerms& terms() const { return terms_; }

  /// Assigns at most `count` samples to a step, all of one epoch; nothing while there are none. `count` > 0.
  std::optional<SampleAssignment> take(ProcessId trainer, const TrainerProcess& process, Step step,
                                       uint64_t count);
  /// The gradient of a step is in the model; unknown steps are ignored.
  void done(ProcessId trainer, Step step);
  /// The gradient of a step was dropped: frees its samples; unknown steps are ignored.
  void returnSamples(ProcessId trainer, Step step);
  /// The trainer has departed: frees its samples. Returns the steps concerned.
  std::vector<Step> leave(ProcessId trainer);

  /// Result of reclaim().
  struct Return {
    std::vector<SampleAssignment>
        claimed;             ///< unknown to this plan and held by no other trainer: now assigned
    std::vector<Step> lost;  ///< steps whose samples are done or assigned to other trainers
  };
  /// A trainer joins that this plan has not assigned to, with samples (`held`) from earlier whose gradients
  /// have no answer.
  Return reclaim(ProcessId trainer, const TrainerProcess& process, const std::vector<HeldSamples>& held);
  /// Stops waiting for the trainers that have not returned; frees what is away.
  void returnAllAway();

  /// Number of a trainer's unfinished steps.
  size_t openSteps(ProcessId trainer) const;
  /// Whether there are samples to assign.
  bool hasMore() const { return free_.covered() > 0; }
  /// Every sample of every epoch is done.
  bool finished() const { return begun() && !hasMore() && assigned_.empty() && away_.empty(); }
  /// Number of completed samples, over all epochs. Samples of epochs before the first one count as done.
  uint64_t doneCount() const;
  uint64_t underWayCount() const;

  /// Closes a finished plan: the next trainer to ask starts the next one.
  void close();
  bool closed() const { return closed_; }

  /// The next shard is about to be saved, in its current state; shards are saved one after the other. A
  /// gradient applied after the first call may be in some saved shards and not in others, so saved() includes
  /// it. In effect until endSaving().
  void beginShard() { shardsBegun_++; }
  SavedSamples saved() const;
  void endSaving();

  /// For samples that are away, while the log of an earlier daemon is replayed. An assignment takes samples
  /// from whichever trainer had them and returned them, since the log does not record the return. An
  /// assignment that this plan contains already is ignored.
  using AwayKey = std::pair<TrainerProcess, Step>;
  const std::map<AwayKey, SampleRange>& away() const { return away_; }
  Status replayAssignment(const SampleAssignment& assignment);
  void doneAway(const AwayKey& key);
  void returnAway(const AwayKey& key);

  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  using Key = std::pair<ProcessId, Step>;

  Status check(const SampleRange& range) const;
  uint64_t indexOf(const SampleRange& range) const { return range.epoch * terms_.samples + range.begin; }
  void put(const SampleRange& range) { free_.add(indexOf(range), range.count); }
  bool claim(const SampleRange& range) { return free_.remove(indexOf(range), range.count); }
  const SampleAssignment& assign(ProcessId trainer, const TrainerProcess& process,
                                 const HeldSamples& samples);

  PlanTerms terms_;
  bool closed_ = false;
  uint64_t assignmentCount_ = 0;
  RangeSet free_;
  std::map<Key, SampleAssignment> assigned_;
  std::map<AwayKey, SampleRange> away_;
  uint32_t shardsBegun_ = 0;
  std::vector<SavedAssignment> doneMeanwhile_;  // done since the first beginShard()
};

/// A plan that one thread assigns from and another one saves.
using GuardedSamples = kj::MutexGuarded<SamplePlan>;

}  // namespace psd
