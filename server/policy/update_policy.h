#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kj/async.h>

#include "common/types/range_set.h"
#include "server/optimizer/optimizer.h"
#include "server/store/shard.h"

namespace psd {

/// One trainer's gradient for one shard while its slices come in. Owned by the trainer's session and
/// used on its event loop only; a policy may keep what it needs in it.
struct ShardPush {
  Step step;
  Version basis;         ///< what the gradient was computed from
  uint32_t samples = 0;  ///< examples behind the gradient
  RangeSet arrived;      ///< elements whose slices were accepted, the current one included
  uint64_t pending = 0;  ///< slices accepted and not yet applied
  uint64_t number = 0;   ///< the shard's update number, once the policy has taken one
  uint64_t staleness = 0;
  std::vector<float> staged;  ///< gradient so far, for policies that apply a shard whole
};

/// One trainer's reading of one shard over several slices. Owned like ShardPush.
struct ShardPull {
  uint64_t pull = 0;       ///< the trainer's number for it
  uint64_t delivered = 0;  ///< elements handed out
  kj::Maybe<kj::ForkedPromise<Result<std::shared_ptr<const ShardSnapshot>>>> snapshot;
};

struct PushAnswer {
  bool applied = false;  ///< the shard's update is complete and in the model
  Version version;
  uint64_t staleness = 0;
};

/// Staleness τ at this moment: updates that the shard has applied since the version the gradient was
/// computed from.
inline uint64_t stalenessOf(const Shard& shard, const ShardPush& push) {
  uint64_t now = shard.version().value;
  return now > push.basis.value ? now - push.basis.value : 0;
}

struct PullAnswer {
  Version version;
  ReadView view;
};

/// Decides when and how gradients become part of the model and what a reader sees. One object serves
/// all trainers and shards.
///
/// Thread-safe: called from every event loop, each with its own Lane, ShardPush and ShardPull. Answers
/// come as promises of the calling loop; waiting is parking a promise, never blocking. The spans and
/// references given stay valid until the promise resolves. Slices were checked against shard and
/// grain, and every gradient value is finite. A policy that gathers slices decodes them with copyTo().
class UpdatePolicy {
 public:
  virtual ~UpdatePolicy() = default;

  virtual std::string_view name() const = 0;
  /// Whether readers may read the weights in place while updates change them: what pull() gives promises no
  /// more than that.
  virtual bool readsLive() const { return false; }
  /// Takes one slice of a gradient. `push.arrived` already holds it.
  virtual kj::Promise<Result<PushAnswer>> push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                               Gradient gradient) = 0;
  /// Reads one slice.
  virtual kj::Promise<Result<PullAnswer>> pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                               uint64_t count) = 0;
};

}  // namespace psd
