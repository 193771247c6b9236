#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "server/rpc/connection.h"
#include "server/rpc/served_model.h"

namespace psd {

/// One slice of a trainer's gradient, however it came. A value type.
struct PushSlice {
  Step step;
  uint32_t shard = 0;
  uint64_t offset = 0;   ///< elements, from the shard's begin
  Version basis;         ///< what the gradient was computed from
  uint32_t samples = 0;  ///< examples behind the gradient
  Gradient gradient = std::span<const float>();
};

/// Takes the gradients of one trainer: checks each slice, joins the slices of a step to a shard's update and
/// hands them to the policy. Belongs to the connection's loop; outlives the promises that it gives.
class PushServer {
 public:
  PushServer(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model, TrainerRef trainer,
             std::shared_ptr<SessionCounters> counters);

  /// The policy's answer to one slice, or why it is refused. Where a policy lets a gradient wait for other
  /// trainers, the last slice of the step waits and all others are answered at once, so that a peer with few
  /// slices in flight gets all of them in. `slice.gradient` stays readable until this resolves.
  kj::Promise<Result<PushAnswer>> push(const PushSlice& slice);

  /// Resolves when no slice is with the policy. One call at most.
  kj::Promise<void> whenLanded();

 private:
  /// One gradient on its way in, all shards together; the loop knows of it while it is half there or waits.
  struct StepPush {
    explicit StepPush(EventLoop& loop) : loop(loop) { loop.updateBegan(); }
    ~StepPush() {
      if (!complete) loop.updateArrived();
      loop.updateEnded();
    }
    StepPush(const StepPush&) = delete;
    StepPush& operator=(const StepPush&) = delete;
    EventLoop& loop;
    uint64_t arrived = 0;                                  ///< elements
    bool complete = false;                                 ///< all have arrived
    std::vector<kj::Promise<Result<PushAnswer>>> waiting;  ///< what policies left in ShardPush::later
  };
  /// A shard's part of it, under the policy that it began with.
  struct OpenPush : ShardPush {
    std::shared_ptr<UpdatePolicy> policy;
  };
  struct Admitted {
    std::shared_ptr<OpenPush> push;
    std::shared_ptr<StepPush> step;
    bool last;  ///< the slice completes the step
  };

  kj::Promise<Result<PushAnswer>> take(const PushSlice& slice);
  Status check(const PushSlice& slice) const;
  /// What a slice belongs to, with the slice entered; a later step gives up an unfinished one.
  Result<Admitted> admit(const PushSlice& slice);
  Result<std::shared_ptr<StepPush>> stepOf(const PushSlice& slice);
  std::shared_ptr<OpenPush> open(const PushSlice& slice) const;
  /// The answer to the last slice of a step: once everything that waits is known, the worst of it.
  static kj::Promise<Result<PushAnswer>> settle(std::shared_ptr<StepPush> step, PushAnswer last);
  void count(const PushSlice& slice);
  void count(const PushAnswer& answer);
  void landed();

  const std::shared_ptr<Connection> connection_;
  EventLoop& loop_;  // the connection's; it keeps it alive
  const std::shared_ptr<ServedModel> model_;
  const TrainerRef trainer_;
  const std::shared_ptr<SessionCounters> counters_;
  std::map<Step, std::shared_ptr<StepPush>> steps_;  // those that lack slices
  std::vector<std::shared_ptr<OpenPush>> pushes_;    // per shard, the newest
  uint64_t inFlight_ = 0;                            // slices with the policy
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> allLanded_;
};

}  // namespace psd
