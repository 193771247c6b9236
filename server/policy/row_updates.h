#pragma once

#include <optional>

#include <kj/async.h>

#include "server/policy/policy_capabilities.h"
#include "server/policy/update_policy.h"

namespace psd {

/// A row shard's complete part of a gradient.
struct WholeRows {
  SessionId session;
  UpdateSource source;
  StagedRows staged;
};

/// Whether a part that arrived in a single slice may be used in place or must be copied.
enum class RowRetention { inPlace, copied };

/// Gathers a slice of a row shard's part. Returns the part once it is complete.
Result<std::optional<WholeRows>> gatherRows(StagingPool& pool, const RowShard& shard, ShardPush& push,
                                            uint64_t first, const RowGradient& slice, RowRetention taken);

/// The current values of the rows, without taking the shard's lock.
Result<RowsAnswer> readRows(const RowShard& shard, const RowIds& rows, std::span<float> out);

/// The values of the rows at one version, read under the shard's lock.
kj::Promise<Result<RowsAnswer>> readRowsUnderLock(RowShard& shard, const RowIds& rows, std::span<float> out);

}  // namespace psd
