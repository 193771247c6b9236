#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// A piece of one pass over the data: places [begin, begin + count) of that epoch's order.
struct SampleRange {
  uint64_t epoch = 0;  ///< from 0
  uint64_t begin = 0;
  uint64_t count = 0;
  bool operator==(const SampleRange&) const = default;
};

/// Deals the samples of every epoch to whoever asks, so that each is in one applied gradient (Li et al. 2014;
/// DLRover): who is slow takes fewer, and what was dealt to a trainer that is gone, or whose gradient was
/// dropped, is dealt again, before anything new. A range belongs to a step of a trainer; asking again for the
/// same step gives the same range. Pure, like Roster.
class SamplePlan {
 public:
  /// Both above 0.
  SamplePlan(uint64_t samples, uint64_t epochs, uint64_t firstEpoch = 0)
      : samples_(samples), epochs_(epochs), epoch_(firstEpoch) {}

  uint64_t samples() const { return samples_; }
  uint64_t epochs() const { return epochs_; }

  /// At most `count` samples for a step, all of one epoch; nothing while there are none. `count` > 0.
  std::optional<SampleRange> take(SessionId session, Step step, uint64_t count);
  /// The gradient of a step is in the model; unknown ones are ignored.
  void done(SessionId session, Step step);
  /// It was dropped.
  void giveBack(SessionId session, Step step);
  /// The trainer is gone. Gives the steps whose samples go to others.
  std::vector<Step> leave(SessionId session);

  /// Steps of a trainer that are not over.
  size_t openSteps(SessionId session) const;
  /// Whether there is something to take.
  bool hasMore() const { return !returned_.empty() || epoch_ < epochs_; }
  /// Every sample of every epoch is done.
  bool finished() const { return !hasMore() && dealt_.empty(); }
  uint64_t doneCount() const { return done_; }

 private:
  using Key = std::pair<SessionId, Step>;
  void put(const SampleRange& range);

  const uint64_t samples_, epochs_;
  uint64_t epoch_ = 0, next_ = 0;  // what was never dealt begins here
  uint64_t done_ = 0;              // samples, over all epochs
  std::map<Key, SampleRange> dealt_;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> returned_;  // epoch and begin → count
};

}  // namespace psd
