#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <kj/async.h>

#include "common/types/stopwatch.h"
#include "server/loop/event_loop.h"
#include "server/policy/update_policy.h"

namespace psd {

/// A shard's part of a gradient, under the policy that it began with. Owned by its event loop, like StepPush.
struct PartPush : ShardPush {
  std::shared_ptr<UpdatePolicy> policy;
  uint64_t unanswered = 0;                 ///< slices with the policy
  std::optional<PushAnswer> newest;        ///< answer of the policy to a slice
  std::optional<Error> refused;            ///< by the policy, once it had all of the part
  bool abandoned = false;                  ///< its session ended before it was whole
  std::optional<Result<PushAnswer>> fate;  ///< what became of it, once that is known

  /// What slices that the policy has answered are told until it has decided.
  PushAnswer received() const { return {PushOutcome::received, newest->version, newest->staleness}; }
  /// Once nothing of the step waits: whether nothing of it is in the model, nor will be. A policy that
  /// applies slice by slice has applied some.
  bool dropped() const {
    if (fate) return !fate->ok() || !(*fate)->applied();
    return (refused || unanswered == 0) && !policy->readsLive();
  }
};

/// One gradient on its way in, all shards together; the loop knows of it while it is half there or waits.
struct StepPush {
  StepPush(EventLoop& loop, Step number, size_t shards) : number(number), parts(shards), loop_(loop) {
    loop_.updateBegan();
  }
  ~StepPush() { close(); }
  StepPush(const StepPush&) = delete;
  StepPush& operator=(const StepPush&) = delete;

  void completed() {
    complete = true;
    completions++;
    if (open_) loop_.updateArrived();
  }
  /// A slice was refused, which may come again.
  void lacks(uint64_t elements) {
    arrived -= elements;
    if (complete && open_) loop_.updateLacksSlices();
    complete = false;
  }
  /// True once the step's trainer was lost: the loop does not wait for the step, and nothing new belongs to
  /// it until reopen().
  bool closed() const { return !open_; }
  /// The trainer is back, with what the step lacks.
  void reopen() {
    open_ = true;
    loop_.updateBegan();
    for (const auto& part : parts) {
      if (part) part->abandoned = false;
    }
  }
  /// The loop need not wait for the step any more.
  void close() {
    if (!open_) return;
    open_ = false;
    if (!complete) loop_.updateArrived();
    loop_.updateEnded();
  }
  /// Resolves when something has become known of the step.
  kj::Promise<void> whenChanged() {
    auto pair = kj::newPromiseAndFulfiller<void>();
    watchers_.push_back(kj::mv(pair.fulfiller));
    return kj::mv(pair.promise);
  }
  void changed() {
    for (auto& watcher : watchers_) watcher->fulfill();
    watchers_.clear();
  }

  const Step number;
  const Stopwatch sinceFirstSlice;
  std::vector<std::shared_ptr<PartPush>> parts;  ///< by shard; null: nothing of it is there
  uint64_t arrived = 0;                          ///< elements
  bool complete = false;                         ///< all elements have arrived
  uint64_t completions = 0;                      ///< times it became complete: refused slices come again
  uint64_t unanswered = 0;                       ///< slices with the policies
  std::optional<Result<PushAnswer>> outcome;     ///< of the whole, once it is known

 private:
  EventLoop& loop_;
  bool open_ = true;  // counted by the loop
  std::vector<kj::Own<kj::PromiseFulfiller<void>>> watchers_;
};

}  // namespace psd
