#pragma once

#include <optional>

#include <kj/async.h>

#include "server/policy/update_policy.h"

namespace psd {

/// A row shard's part of a gradient, all of it.
struct WholeRows {
  SessionId session;
  UpdateSource source;
  StagedRows staged;
};

/// How long a part that came whole in one slice may be left where it lies.
enum class TakenRows { whereTheyLie, copied };

/// Takes a slice of a row shard's part. Gives the part once all of it is there.
Result<std::optional<WholeRows>> gatherRows(StagingPool& pool, const RowShard& shard, ShardPush& push,
                                            uint64_t first, const RowGradient& slice, TakenRows taken);

/// The rows' values as they are while the caller waits for nobody.
Result<RowsAnswer> readRows(const RowShard& shard, const RowIds& rows, std::span<float> out);

/// The rows' values of one version, under the shard's lock.
kj::Promise<Result<RowsAnswer>> readRowsUnderLock(RowShard& shard, const RowIds& rows, std::span<float> out);

}  // namespace psd
