#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <kj/async.h>

#include "common/budget/byte_budget.h"
#include "common/types/ids.h"
#include "common/types/row_ids.h"
#include "server/optimizer/option.h"
#include "server/store/gradient.h"

namespace psd {

/// A push that went into an update, or a trainer's share in it: where trainers average their gradients before
/// one of them pushes, the others have shares, with step 0 and no samples. A value type.
struct UpdateSource {
  Rank rank;
  uint32_t samples = 0;      ///< examples behind its gradient
  uint64_t incarnation = 0;  ///< of the trainer that pushed
  Step step;
  Version basis;  ///< version that the gradient was computed from
  uint64_t staleness = 0;

  bool isShare() const { return step == Step{}; }
};

/// Which part of a larger change a shard's update is. An update of several shards is logged one shard after
/// the other and is in the model once it is in all of them. Only then are its pushes answered.
enum class UpdatePart : uint32_t {
  whole = 0,   ///< the update is of one shard
  goesOn = 1,  ///< the update of the next shard comes after this one
  last = 2,
};

/// So many updates of ids, one after the other in a list, that an admission filter with these terms counts. A
/// value type.
struct CountedRun {
  uint32_t table = 0;                  ///< index into ModelSpec::tables
  uint32_t count = 0;                  ///< never 0
  uint32_t pushes = 0, blockBits = 0;  ///< AdmissionFilter::Terms
  bool operator==(const CountedRun&) const = default;
};

/// What happened to rows of a row shard beside an update: some were evicted before it, and ids without a row
/// were counted with it. A view of memory that the caller keeps.
struct RowsBeside {
  RowIds evicted;
  std::span<const CountedRun> counted;
  std::span<const uint64_t> countedIds;  ///< run after run

  bool empty() const { return evicted.empty() && countedIds.empty(); }
};

/// One update of a whole shard as the optimizer ran it. A view of memory that the caller keeps.
struct AppliedUpdate {
  UpdateScalars scalars;
  Gradient gradient;  ///< what the optimizer got; of a row shard row after row
  std::span<const UpdateSource> sources;
  UpdatePart part = UpdatePart::whole;
  std::optional<RowIds> rows = {};  ///< of a row shard: whose gradients these are
  RowsBeside beside = {};           ///< of a row shard
};

/// The log of all shards' updates, each shard's in the order in which it made them. Thread-safe.
class UpdateLog {
 public:
  virtual ~UpdateLog() = default;

  /// Room among what may wait for the disk, for an update whose gradient has so many bytes. To be asked for
  /// before the shard's lock is taken. Gives no room where the log has failed. With 0 bytes: resolves once
  /// all earlier callers have their room.
  virtual kj::Promise<ByteBudget::Lease> room(uint64_t gradientBytes) = 0;

  /// Copies the update and returns at once: its number in the log, or 0 where the log has failed. Called with
  /// the shard's lock held. `room`: as room() gave it.
  virtual uint64_t append(ShardId shard, const AppliedUpdate& update, ByteBudget::Lease room) = 0;

  /// Resolves, on the calling event loop, once the update with that number and all before it are on the disk,
  /// or the log has failed and said so.
  virtual kj::Promise<void> whenDurable(uint64_t number) = 0;
};

}  // namespace psd
