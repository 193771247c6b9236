#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/types/stopwatch.h"
#include "server/loop/updates_in_flight.h"
#include "server/policy/update_policy.h"

namespace psd {

/// State of a shard's part of a gradient.
enum class PartState {
  gathering,   ///< slices are missing
  withPolicy,  ///< the policy has every slice but has not answered all of them
  waiting,     ///< the policy has answered every slice; the gradient waits for other trainers
  decided,     ///< the outcome of the part is known, possibly an error
};

/// A shard's part of a gradient, under the policy that was current at its start. Owned by its PushLedger's
/// thread.
struct PartPush {
  ShardPush push;                             ///< the policy's view and state
  std::shared_ptr<UpdatePolicy> policy;       ///< set when the first slice is admitted
  bool live = false;                          ///< UpdatePolicy::Properties::appliesSlices
  uint64_t unanswered = 0;                    ///< slices with the policy
  std::optional<PushAnswer> newest;           ///< worst answer of the policy to a slice
  std::optional<Result<PushAnswer>> outcome;  ///< outcome of the part, once known
  bool abandoned = false;                     ///< the session ended before the part was complete

  bool whole() const { return push.arrived.covered() == push.total; }
  bool refused() const { return outcome && !outcome->ok(); }
  PartState state() const {
    if (outcome) return PartState::decided;
    if (!whole()) return PartState::gathering;
    return unanswered > 0 ? PartState::withPolicy : PartState::waiting;
  }
  /// Records the policy's answer to a slice.
  void note(const PushAnswer& answer) {
    const uint64_t logged = newest ? std::max(newest->logged, answer.logged) : answer.logged;
    if (!newest || newest->outcome <= answer.outcome) newest = answer;
    newest->logged = logged;
  }
  /// The answer to slices that the policy has processed, until the part is decided.
  PushAnswer received() const { return {PushOutcome::received, newest->version, newest->staleness}; }
  /// Once nothing of the step is pending: whether no part of the gradient is in the model or will be. A
  /// policy that applies slice by slice has applied some.
  bool dropped() const {
    if (outcome && outcome->ok()) return !(*outcome)->applied();
    return (outcome || unanswered == 0) && !live;
  }
};

/// One incoming gradient over all its shards, counted in the loop's UpdatesInFlight while it is incomplete or
/// pending. Owned by its PushLedger's thread; promises may extend its lifetime.
class StepPush {
 public:
  /// `expected`: number of parts in the gradient, of a model of `shards` shards. `group`: the only parameter
  /// group that it covers; nothing: all.
  StepPush(UpdatesInFlight& underWay, Step number, uint32_t expected, size_t shards,
           std::optional<uint32_t> group = {})
      : number(number), expected(expected), group(group), parts(shards), underWay_(underWay) {
    underWay_.open++;
    underWay_.arriving++;
  }
  ~StepPush() { close(); }
  StepPush(const StepPush&) = delete;
  StepPush& operator=(const StepPush&) = delete;

  /// All expected parts are complete.
  void completed() {
    complete = true;
    completions++;
    if (open_) underWay_.arriving--;
  }
  /// The policy rejected a slice, which may be sent again.
  void markIncomplete() {
    if (complete && open_) underWay_.arriving++;
    complete = false;
  }
  /// Whether the slice that completed the step for the `completion`th time was the last to complete it; 0: it
  /// did not complete the step.
  bool completedBy(uint64_t completion) const {
    return completion != 0 && complete && completion == completions;
  }
  /// True once the step's trainer was lost: no call waits for the step, and no slice joins it until reopen().
  bool closed() const { return !open_; }
  /// The trainer reconnected and sends what the step lacks.
  void reopen() {
    open_ = true;
    underWay_.open++;
    underWay_.arriving++;
    for (const auto& part : parts) {
      if (part) part->abandoned = false;
    }
  }
  /// No call waits for the step any longer.
  void close() {
    if (!open_) return;
    open_ = false;
    if (!complete) underWay_.arriving--;
    underWay_.open--;
  }
  /// Whether the gradient covers the shards of this group.
  bool isOf(uint32_t ofGroup) const { return !group || *group == ofGroup; }
  /// Calls `tell` once, at the next change of the step's state.
  void watch(std::function<void()> tell) { watchers_.push_back(std::move(tell)); }
  void changed() {
    for (const auto& tell : std::exchange(watchers_, {})) tell();
  }

  const Step number;
  const uint32_t expected;              ///< number of parts, as sent by the trainer
  const std::optional<uint32_t> group;  ///< the only parameter group that it covers; nothing: all
  const Stopwatch sinceFirstSlice;
  std::vector<std::shared_ptr<PartPush>> parts;  ///< by shard; null: no slice has arrived
  size_t completeParts = 0;                      ///< complete parts, including those of an earlier session
  bool complete = false;                         ///< all expected parts are complete
  uint64_t completions = 0;                      ///< times it became complete; rejected slices are sent again
  uint64_t unanswered = 0;                       ///< slices with the policies
  std::optional<Result<PushAnswer>> outcome;     ///< of the whole step, once known

 private:
  UpdatesInFlight& underWay_;
  bool open_ = true;  // counted in underWay_
  std::vector<std::function<void()>> watchers_;
};

}  // namespace psd
