#pragma once

#include <cstdint>
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
  std::span<const float> gradient;
};

/// Takes the gradients of one trainer: checks each slice, joins the slices of a step to a shard's update and
/// hands them to the policy. Belongs to the connection's loop; outlives the promises that it gives.
class PushServer {
 public:
  PushServer(std::shared_ptr<Connection> connection, std::shared_ptr<ServedModel> model,
             std::shared_ptr<SessionCounters> counters);

  /// The policy's answer to one slice, or why it is refused. `slice.gradient` stays readable until this
  /// resolves.
  kj::Promise<Result<PushAnswer>> push(const PushSlice& slice);

  /// Resolves when no slice is with the policy. One call at most.
  kj::Promise<void> whenLanded();

 private:
  /// A shard's update in the making; tells the loop while it is half there.
  struct OpenPush : ShardPush {
    explicit OpenPush(EventLoop& loop) : loop(loop) { loop.updateBegan(); }
    ~OpenPush() { finish(); }
    void finish() {
      if (open) loop.updateEnded();
      open = false;
    }
    EventLoop& loop;
    bool open = true;
  };

  Status check(const PushSlice& slice) const;
  /// The update that a slice belongs to, with the slice entered; a later step replaces an unfinished one.
  Result<std::shared_ptr<OpenPush>> admit(const PushSlice& slice);
  void count(const PushSlice& slice);
  void landed();

  const std::shared_ptr<Connection> connection_;
  EventLoop& loop_;  // the connection's; it keeps it alive
  const std::shared_ptr<ServedModel> model_;
  const std::shared_ptr<SessionCounters> counters_;
  std::vector<std::shared_ptr<OpenPush>> pushes_;  // per shard
  uint64_t inFlight_ = 0;                          // slices with the policy
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> allLanded_;
};

}  // namespace psd
