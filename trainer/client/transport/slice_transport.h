#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"
#include "common/types/hyperparameters.h"
#include "common/types/ids.h"
#include "common/types/push_outcome.h"
#include "trainer/client/api/arena_values.h"
#include "trainer/client/api/row_batch.h"
#include "trainer/client/transport/slices.h"

namespace psd {

/// One gradient to push. `gradient` covers the whole arena.
struct PushRequest {
  Step step;
  ConstArenaValues gradient;
  uint32_t samples = 0;
  uint32_t localSteps = 0;                ///< see GradientInfo
  uint64_t leadRound = 0;                 ///< see GradientInfo
  std::optional<uint32_t> fragment = {};  ///< the only fragment that it contains; empty: all
  uint32_t parts = 0;                     ///< shards that the gradient has a part of; set by the channel
  std::shared_ptr<const ModelHyperparameters> hyperparameters = {};  ///< see GradientInfo
  /// `hyperparameters` by shard, then by row shard; set by the channel.
  std::shared_ptr<const std::vector<Hyperparameters>> ofBlock = {};
  std::vector<Version> basis;                 ///< per shard; 0 where it is too short
  std::shared_ptr<const RowBatch> rows = {};  ///< with their gradients; null: the gradient has none
  bool onDevice = false;                      ///< whether `gradient` is in ClientOptions::cudaDevice's memory
  /// The shards that dropped their part, added by the connection that receives this answer. To be read once
  /// all connections that carry the push have their answers.
  std::shared_ptr<std::vector<ShardId>> dropped = std::make_shared<std::vector<ShardId>>();
};

/// The values of a slice to push, in host or device memory.
struct SliceValues {
  std::span<const float> values;
  std::shared_ptr<const void> owner;  ///< null: the caller owns them
};

/// The daemon's answer to one slice of a push.
struct SlicePushed {
  Status status;  ///< if an error, only `dropped` of the rest is meaningful
  PushOutcome outcome = PushOutcome::received;
  Version version;  ///< of the shard
  uint64_t staleness = 0;
  uint64_t bytes = 0;            ///< of gradient, as sent
  std::vector<ShardId> dropped;  ///< shards that dropped the gradient, if the answer names them
};

/// Result of one slice of a pull.
struct SlicePulled {
  Version version;     ///< of the shard, when it was read
  uint64_t bytes = 0;  ///< of values, as received
  uint64_t known = 0;  ///< of a slice of rows, those that some push has touched
};

/// Transfers values between this process and the daemon, slice by slice. Chosen when a pull or push starts;
/// canPush() and canPull() say what is supported. Belongs to the connection's event loop, where its promises
/// resolve, with the daemon's answer or when the connection breaks.
class SliceTransport {
 public:
  virtual ~SliceTransport() = default;

  /// Human-readable: "rpc", "shm" or "cuda".
  virtual const char* name() const = 0;
  virtual bool canPush() const = 0;
  virtual bool canPull() const = 0;
  /// Whether it sends values in another encoding than that of their dtype.
  virtual bool encodes() const { return false; }
  /// Limit on slices of pushes in flight.
  virtual uint32_t window() const { return UINT32_MAX; }

  /// Pushes one slice, whose values must not change until the answer arrives. `push` outlives the promise.
  virtual kj::Promise<SlicePushed> push(const PushRequest& push, const Slice& slice,
                                        const SliceValues& values) = 0;
  /// Pulls one slice into a destination of its size. `pull`: number of the pull that the slice belongs to;
  /// rises.
  virtual kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const Slice& slice, std::span<float> into) = 0;

  /// All connections have their answers to the push of `step`: the shards `dropped` dropped it, in addition
  /// to those that said so in their answers.
  virtual void conclude(Step step, const std::vector<ShardId>& dropped) { (void)step, (void)dropped; }
  /// The connection is about to end for this reason: from now on no memory of a caller is written.
  virtual void close(const Error& why) { (void)why; }
};

/// The error of an unsupported operation.
inline Error cannot(const SliceTransport& transport, const char* what) {
  return {ErrorCode::invalidArgument, std::string("transport ") + transport.name() + " cannot " + what};
}

}  // namespace psd
