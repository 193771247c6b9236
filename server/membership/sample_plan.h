#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <kj/mutex.h>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "common/types/range_set.h"
#include "common/types/samples.h"
#include "server/membership/trainer.h"

namespace psd {

/// Samples that were given out for a step.
struct SampleDeal : HeldSamples {
  TrainerProcess process;
  uint64_t number = 0;  ///< rises with each deal of a plan
  bool operator==(const SampleDeal&) const = default;
};

/// What a plan is about. `number` counts the plans of this daemon and the daemons before it.
struct PlanTerms {
  uint64_t number = 0;  ///< 0: there was none yet
  uint64_t samples = 0, epochs = 0;
  uint64_t firstEpoch = 0;  ///< in which it began
  bool operator==(const PlanTerms&) const = default;
};

/// Samples whose gradient may be in a saved model.
struct SavedDeal : SampleDeal {
  static constexpr uint32_t kAll = UINT32_MAX;
  uint32_t doubtful = kAll;  ///< so many of the first shards may lack the gradient; the other shards have it
  bool operator==(const SavedDeal&) const = default;
};

/// A plan as it is kept beyond the daemon. A value type.
struct SavedSamples {
  PlanTerms terms;
  bool closed = false;
  uint64_t deals = 0;  ///< so far
  RangeSet free;       ///< not dealt, or given back: index = epoch × samples + place
  std::vector<SavedDeal>
      underWay;  ///< with the deals that were done while shards were being saved; without numbers
  bool operator==(const SavedSamples&) const = default;
};

/// Deals the samples of every epoch to whoever asks, so that each is in one applied gradient (Li et al. 2014;
/// DLRover): who is slow takes fewer, and what was dealt to a trainer that is gone, or whose gradient was
/// dropped, is dealt again, before anything new. A range belongs to a step of a trainer; asking again for the
/// same step gives the same range. One plan comes after the other. Pure, like Roster.
///
/// A plan that was restored knows of trainers that a daemon before had dealt to: what is theirs is *away*
/// until they come back, or are no longer waited for.
class SamplePlan {
 public:
  SamplePlan() = default;
  /// Takes up a plan that was saved; what was under way is away. ErrorCode::invalidArgument where it
  /// contradicts itself.
  static Result<SamplePlan> restore(const SavedSamples& saved);

  /// Begins the next plan: `samples` and `epochs` above 0. Nothing of the plan before goes on.
  Status begin(uint64_t samples, uint64_t epochs, uint64_t firstEpoch = 0);
  /// Begins a plan with the terms that another daemon gave it. Nothing of the plan before goes on.
  Status begin(const PlanTerms& terms);
  bool begun() const { return terms_.number != 0; }
  const PlanTerms& terms() const { return terms_; }

  /// Takes at most `count` samples for a step, all of one epoch; nothing while there are none. `count` > 0.
  std::optional<SampleDeal> take(ProcessId trainer, const TrainerProcess& process, Step step, uint64_t count);
  /// The gradient of a step is in the model; unknown steps are ignored.
  void done(ProcessId trainer, Step step);
  /// The gradient of a step was dropped: its samples are free again; unknown steps are ignored.
  void giveBack(ProcessId trainer, Step step);
  /// The trainer is gone. Gives the steps whose samples go to others.
  std::vector<Step> leave(ProcessId trainer);

  /// A trainer comes that this plan has not dealt to, with samples that it has from before, of which it was
  /// not told what became of their gradients.
  struct Return {
    std::vector<SampleDeal> claimed;  ///< this plan did not know, and nobody else has them
    std::vector<Step> lost;           ///< whose samples are done, or are others' from now on
  };
  Return comeBack(ProcessId trainer, const TrainerProcess& process, const std::vector<HeldSamples>& held);
  /// Stops waiting for the trainers that have not come back.
  void giveUpAway();

  /// Steps of a trainer that are not over.
  size_t openSteps(ProcessId trainer) const;
  /// Whether there is something to take.
  bool hasMore() const { return free_.covered() > 0; }
  /// Every sample of every epoch is done.
  bool finished() const { return begun() && !hasMore() && dealt_.empty() && away_.empty(); }
  /// Number of samples that are done, over all epochs. Samples of epochs before the first one count as done.
  uint64_t doneCount() const;
  uint64_t underWayCount() const;

  /// Closes a plan that is finished: who comes from now on begins the next.
  void close() { closed_ = true; }
  bool closed() const { return closed_; }

  /// The shards of the model are being saved, one after the other: the next one is saved as it is now. A
  /// gradient that gets done after the first shard was begun may be in some saved shards and not in others,
  /// so saved() tells of it. Lasts until endSaving().
  void beginShard() { shardsBegun_++; }
  SavedSamples saved() const;
  void endSaving();

  /// For samples that are away, while the log of an earlier daemon is repeated. A deal takes samples from
  /// whoever had them and gave them back, of which the log says nothing. A deal that this plan knows is
  /// passed over.
  using AwayKey = std::pair<TrainerProcess, Step>;
  const std::map<AwayKey, SampleRange>& away() const { return away_; }
  Status dealAgain(const SampleDeal& deal);
  void doneAway(const AwayKey& key);
  void giveBackAway(const AwayKey& key);

 private:
  using Key = std::pair<ProcessId, Step>;

  Status check(const SampleRange& range) const;
  uint64_t indexOf(const SampleRange& range) const { return range.epoch * terms_.samples + range.begin; }
  void put(const SampleRange& range) { free_.add(indexOf(range), range.count); }
  bool claim(const SampleRange& range) { return free_.remove(indexOf(range), range.count); }
  const SampleDeal& deal(ProcessId trainer, const TrainerProcess& process, const HeldSamples& samples);

  PlanTerms terms_;
  bool closed_ = false;
  uint64_t deals_ = 0;
  RangeSet free_;
  std::map<Key, SampleDeal> dealt_;
  std::map<AwayKey, SampleRange> away_;
  uint32_t shardsBegun_ = 0;
  std::vector<SavedDeal> doneMeanwhile_;  // done since the first beginShard()
};

/// A plan that one thread deals by and another saves.
using GuardedSamples = kj::MutexGuarded<SamplePlan>;

}  // namespace psd
