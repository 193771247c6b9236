#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/types/stopwatch.h"
#include "server/loop/updates_under_way.h"
#include "server/policy/update_policy.h"

namespace psd {

/// Where a shard's part of a gradient stands.
enum class PartState {
  gathering,   ///< slices are missing
  withPolicy,  ///< the policy has every slice, and has not answered all of them
  waiting,     ///< the policy has answered every slice, and the gradient waits for other trainers
  decided,     ///< what became of the part is known, an error among what it may be
};

/// A shard's part of a gradient, under the policy that it began with. Owned by its PushLedger's thread.
struct PartPush {
  ShardPush push;                             ///< what the policy sees, and keeps
  std::shared_ptr<UpdatePolicy> policy;       ///< set by whoever admits the first slice
  bool live = false;                          ///< UpdatePolicy::appliesSlices()
  uint64_t unanswered = 0;                    ///< slices with the policy
  std::optional<PushAnswer> newest;           ///< answer of the policy to a slice, the worst
  std::optional<Result<PushAnswer>> outcome;  ///< what became of the part, once that is known
  bool abandoned = false;                     ///< its session ended before the part was whole

  bool whole() const { return push.arrived.covered() == push.total; }
  bool refused() const { return outcome && !outcome->ok(); }
  PartState state() const {
    if (outcome) return PartState::decided;
    if (!whole()) return PartState::gathering;
    return unanswered > 0 ? PartState::withPolicy : PartState::waiting;
  }
  /// The policy has answered a slice.
  void note(const PushAnswer& answer) {
    const uint64_t logged = newest ? std::max(newest->logged, answer.logged) : answer.logged;
    if (!newest || newest->outcome <= answer.outcome) newest = answer;
    newest->logged = logged;
  }
  /// What slices that the policy has answered are told until the part is decided.
  PushAnswer received() const { return {PushOutcome::received, newest->version, newest->staleness}; }
  /// Once nothing of the step waits: whether nothing of the part is in the model, nor will be. A policy that
  /// applies slice by slice has applied some.
  bool dropped() const {
    if (outcome && outcome->ok()) return !(*outcome)->applied();
    return (outcome || unanswered == 0) && !live;
  }
};

/// One gradient on its way in, all its shards together, counted among the loop's updates while it is half
/// there or waits. Owned by its PushLedger's thread; promises about it may keep it longer.
class StepPush {
 public:
  /// `expected`: parts that the gradient has, of a model of so many shards. `group`: the only one that they
  /// are of; nothing: of all.
  StepPush(UpdatesUnderWay& underWay, Step number, uint32_t expected, size_t shards,
           std::optional<uint32_t> group = {})
      : number(number), expected(expected), group(group), parts(shards), underWay_(underWay) {
    underWay_.open++;
    underWay_.arriving++;
  }
  ~StepPush() { close(); }
  StepPush(const StepPush&) = delete;
  StepPush& operator=(const StepPush&) = delete;

  /// All expected parts are whole.
  void completed() {
    complete = true;
    completions++;
    if (open_) underWay_.arriving--;
  }
  /// The policy refused a slice, which may come again.
  void lacksSlices() {
    if (complete && open_) underWay_.arriving++;
    complete = false;
  }
  /// Whether the slice that completed the step for the `completion`th time completed it for good; 0: it did
  /// not complete the step.
  bool completedBy(uint64_t completion) const {
    return completion != 0 && complete && completion == completions;
  }
  /// True once the step's trainer was lost: nobody waits for the step, and nothing new belongs to it until
  /// reopen().
  bool closed() const { return !open_; }
  /// The trainer is back, with what the step lacks.
  void reopen() {
    open_ = true;
    underWay_.open++;
    underWay_.arriving++;
    for (const auto& part : parts) {
      if (part) part->abandoned = false;
    }
  }
  /// Nobody waits for the step any more.
  void close() {
    if (!open_) return;
    open_ = false;
    if (!complete) underWay_.arriving--;
    underWay_.open--;
  }
  /// Whether it has a part of each shard of this group.
  bool isOf(uint32_t ofGroup) const { return !group || *group == ofGroup; }
  /// Has `tell` called once, when something has become known of the step.
  void watch(std::function<void()> tell) { watchers_.push_back(std::move(tell)); }
  void changed() {
    for (const auto& tell : std::exchange(watchers_, {})) tell();
  }

  const Step number;
  const uint32_t expected;              ///< parts, as the trainer says
  const std::optional<uint32_t> group;  ///< parameter group that it is of; nothing: of all
  const Stopwatch sinceFirstSlice;
  std::vector<std::shared_ptr<PartPush>> parts;  ///< by shard; null: nothing of it has come
  size_t wholeParts = 0;                         ///< parts that are whole, and those known from before
  bool complete = false;                         ///< all expected parts are whole
  uint64_t completions = 0;                      ///< times it became complete: refused slices come again
  uint64_t unanswered = 0;                       ///< slices with the policies
  std::optional<Result<PushAnswer>> outcome;     ///< of the whole step, once that is known

 private:
  UpdatesUnderWay& underWay_;
  bool open_ = true;  // counted in underWay_
  std::vector<std::function<void()>> watchers_;
};

}  // namespace psd
