#pragma once

#include <optional>
#include <span>

#include <kj/async.h>

#include "common/types/all_reduce.h"
#include "common/types/local_steps.h"
#include "server/policy/rounds_report.h"
#include "server/policy/update_policy.h"

namespace psd {

/// The answer to a pull of rows.
struct RowsAnswer {
  Version version;     ///< of the shard; a lower bound for the values
  uint64_t known = 0;  ///< number of rows that some push has touched
};

/// Updates and reads of embedding tables. Thread-safe, like the policy that it is part of.
class RowPolicy {
 public:
  /// Like UpdatePolicy::push(), for one slice of a row shard's part; `first`: the index of the slice's first
  /// row in the part. The slice has been checked by RowShard::check().
  virtual kj::Promise<Result<PushAnswer>> pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                                   RowGradient slice) = 0;
  /// If pullRows() would currently wait for other trainers: a promise that resolves when it no longer would,
  /// so that the caller can release its resources meanwhile. Otherwise nullptr.
  virtual kj::Maybe<kj::Promise<Status>> waitToPullRows(const std::optional<TrainerRef>&) { return nullptr; }
  /// Writes the values of the rows to `out`, row by row. `trainer`: the reader; nullopt: an observer.
  virtual kj::Promise<Result<RowsAnswer>> pullRows(RowShard& shard, const std::optional<TrainerRef>& trainer,
                                                   RowIds rows, std::span<float> out) = 0;

 protected:
  ~RowPolicy() = default;
};

/// Rounds, each of which is one update of all shards of the parameter group. Thread-safe, like the policy
/// that it is part of.
class RoundPolicy {
 public:
  virtual RoundsReport report() const = 0;
  /// Whether the policy no longer waits for trainers to start together.
  virtual bool started() const = 0;
  /// The lock held during an update of several shards; holding it keeps such updates from starting. Null: the
  /// group has one shard. The lock lives as long as the policy.
  virtual ShardLock* groupLock() = 0;

 protected:
  ~RoundPolicy() = default;
};

/// Notices to trainers that compute for something that may end without them. Thread-safe, like the policy
/// that it is part of.
class RoundNotices {
 public:
  /// Resolves when the trainer should end what it computes for. With rounds, that is the round that starts
  /// from this version of the parameter group's first block; others ignore the version.
  virtual kj::Promise<Result<RoundDue>> roundDue(SessionId session, Version version) = 0;

 protected:
  ~RoundNotices() = default;
};

/// Groups of trainers that average the gradients of tensors before one of them pushes. Row gradients are
/// pushed by each trainer. Thread-safe, like the policy that it is part of.
class AveragingPolicy {
 public:
  /// Resolves with the next averaging group that includes this trainer. `after`: the generation of its
  /// previous group. A newer call of the session ends the previous one.
  virtual kj::Promise<Result<FormedGroup>> formAveragingGroup(SessionId session, uint64_t after,
                                                              const AveragingMember& where) = 0;

 protected:
  ~AveragingPolicy() = default;
};

}  // namespace psd
