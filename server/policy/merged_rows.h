#pragma once

#include <span>
#include <vector>

#include "server/policy/row_updates.h"

namespace psd {

/// The weighted sum of several trainers' gradients of one row shard's rows: Σ weights[i] · parts[i], added up
/// in their order; a trainer without a row counts as zero there, and one of weight 0 not at all. Each row
/// comes once, table by table in the order of their indices, in a table in the order of the ids' hashes: what
/// comes out depends on the gradients alone.
StagedRows mergeRows(const RowShard& shard, std::span<const StagedRows> parts,
                     std::span<const float> weights);

}  // namespace psd
