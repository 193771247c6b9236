#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <kj/async.h>

#include "common/budget/byte_budget.h"
#include "common/types/ids.h"
#include "common/types/row_ids.h"
#include "server/optimizer/option.h"
#include "server/store/gradient.h"

namespace psd {

class BufferSet;

/// A push that contributed to an update, or a trainer's share of it: if trainers average their gradients and
/// one of them pushes the result, the others are recorded as shares, with step 0 and no samples. A value
/// type.
struct UpdateSource {
  Rank rank;
  uint32_t samples = 0;      ///< number of examples in its gradient
  uint64_t incarnation = 0;  ///< of the trainer process that pushed
  Step step;
  Version basis;  ///< version from which the gradient was computed
  uint64_t staleness = 0;
  /// Of the push; null: the optimizer's own. Not recorded with the source, but with the update.
  std::shared_ptr<const Hyperparameters> hyperparameters = {};

  bool isShare() const { return step == Step{}; }
  /// Bytes that it adds to the record of its update besides a fixed size.
  uint64_t bytesToLog() const { return hyperparameters ? hyperparameters->bytes() : 0; }
};

/// Position of a shard's update in a larger change. An update of several shards is logged one shard after the
/// other; it is in the model once it is in all of them, and only then are its pushes answered.
enum class UpdatePart : uint32_t {
  whole = 0,      ///< the update changes only this shard
  continues = 1,  ///< followed by the update of the next shard
  last = 2,
};

/// `count` consecutive entries of an id list, whose updates an admission filter with these terms counts. A
/// value type.
struct CountedRun {
  uint32_t table = 0;                  ///< index into ModelSpec::tables
  uint32_t count = 0;                  ///< never 0
  uint32_t pushes = 0, blockBits = 0;  ///< AdmissionFilter::Terms
  bool operator==(const CountedRun&) const = default;
};

/// Changes to a row shard besides an update: rows evicted before it, and updates of ids without a row counted
/// with it. A view; does not own the memory.
struct RowSideChanges {
  RowIds evicted;
  std::span<const CountedRun> counted;
  std::span<const uint64_t> countedIds;  ///< in the order of the runs

  bool empty() const { return evicted.empty() && countedIds.empty(); }
};

/// One update of a whole shard as the optimizer executed it. A view; does not own the memory.
struct AppliedUpdate {
  UpdateScalars scalars;
  Gradient gradient;  ///< input of the optimizer; for a row shard one row after the other
  std::span<const UpdateSource> sources;
  UpdatePart part = UpdatePart::whole;
  std::optional<RowIds> rows = {};  ///< row shards only: the rows of the gradients
  RowSideChanges beside = {};       ///< row shards only
  /// Keeps the gradient's memory, which does not change from now on: a log may keep it instead of a copy if
  /// it is a buffer of a StagingPool. Null: a log copies the gradient.
  std::shared_ptr<const void> owner = {};
};

/// The log of the updates of all shards; the records of each shard are in update order. Thread-safe.
class UpdateLog {
 public:
  virtual ~UpdateLog() = default;

  /// Reserves budget among the records waiting for the disk, for an update whose gradient has `gradientBytes`
  /// bytes. Must be called before the shard's lock is acquired. Resolves with an empty lease if the log has
  /// failed. With 0 bytes: resolves once all earlier callers have their budget.
  virtual kj::Promise<ByteBudget::Lease> space(uint64_t gradientBytes) = 0;

  /// Copies the update, except a gradient with an owner, and returns its log sequence number without waiting,
  /// or 0 if the log has failed. Must be called with the shard's lock held. `space`: from space().
  virtual uint64_t append(ShardId shard, const AppliedUpdate& update, ByteBudget::Lease space) = 0;

  /// Copies a change of the model's buffers, which replaces all of them; else as for an update.
  virtual uint64_t append(const BufferSet& buffers, ByteBudget::Lease space) = 0;

  /// Resolves, on the calling event loop, once the log is durable up to the sequence number `number`, or once
  /// the log has failed and reported its failure.
  virtual kj::Promise<void> whenDurable(uint64_t number) = 0;
};

}  // namespace psd
