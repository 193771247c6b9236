#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "common/types/push_outcome.h"
#include "trainer/client/row_batch.h"
#include "trainer/client/transport/slices.h"

namespace psd {

/// One gradient to push. `gradient` is the whole arena's.
struct PushRequest {
  Step step;
  std::span<const float> gradient;
  uint32_t samples = 0;
  uint32_t localSteps = 0;                ///< see Behind
  std::optional<uint32_t> fragment = {};  ///< that it is of alone; nothing: of all
  uint32_t parts = 0;          ///< shards that the gradient has a part of; set by who begins to send it
  std::vector<Version> basis;  ///< per shard; 0 where it is too short
  std::shared_ptr<const RowBatch> rows = {};  ///< with their gradients; null: the gradient has none of rows
  bool onDevice = false;  ///< where `gradient` is: ClientOptions::cudaDevice, or host memory
  /// The shards that dropped their part, put here by the one that is told so of the connections that carry
  /// the push. To be read once all of these have their answers.
  std::shared_ptr<std::vector<ShardId>> dropped = std::make_shared<std::vector<ShardId>>();
};

/// The values of a slice to push, wherever they are.
struct SliceValues {
  std::span<const float> values;
  std::shared_ptr<const void> owner;  ///< null: the caller's
};

/// What the daemon answered to one slice of a push.
struct SlicePushed {
  Status status;  ///< where it refused the slice, what follows but `dropped` says nothing
  PushOutcome outcome = PushOutcome::received;
  Version version;  ///< of the shard
  uint64_t staleness = 0;
  uint64_t bytes = 0;            ///< of gradient, as they travelled
  std::vector<ShardId> dropped;  ///< shards that dropped the gradient, where the answer tells of them
};

/// What came of one slice of a pull.
struct SlicePulled {
  Version version;     ///< of the shard, when it was read
  uint64_t bytes = 0;  ///< of values, as they came
  uint64_t known = 0;  ///< of a slice of rows, those that some push has touched
};

/// A way for values to travel between this process and the daemon, slice by slice. Chosen when a pull or a
/// push begins; one that cannot do either says so, and is not asked for it. Belongs to the connection's event
/// loop, where its promises resolve: with what the daemon said, or as the connection breaks.
class SliceTransport {
 public:
  virtual ~SliceTransport() = default;

  /// What people call it: "rpc", "shm" or "cuda".
  virtual const char* name() const = 0;
  virtual bool canPush() const = 0;
  virtual bool canPull() const = 0;
  /// Slices of pushes that may be under way at a time, at most.
  virtual uint32_t window() const { return UINT32_MAX; }

  /// Pushes one slice, of which the values stay as they are until the answer is there. `push` outlives the
  /// promise.
  virtual kj::Promise<SlicePushed> push(const PushRequest& push, const Slice& slice,
                                        const SliceValues& values) = 0;
  /// Pulls one slice into a destination of its size. Slices of one `pull` belong together; numbers rise.
  virtual kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const Slice& slice, std::span<float> into) = 0;

  /// All connections have their answers to the push of `step`: the shards `dropped` dropped it, besides those
  /// that said so in their answers.
  virtual void conclude(Step step, const std::vector<ShardId>& dropped) { (void)step, (void)dropped; }
  /// The connection is about to go, for this reason: nothing is written to any memory of a caller after it.
  virtual void close(const Error& why) { (void)why; }
};

/// What a transport answers that is asked for what it cannot do.
inline Error cannot(const SliceTransport& transport, const char* what) {
  return {ErrorCode::invalidArgument, std::string("transport ") + transport.name() + " cannot " + what};
}

}  // namespace psd
