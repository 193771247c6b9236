#pragma once

#include <span>
#include <vector>

#include "server/policy/row_updates.h"

namespace psd {

/// The weighted sum of several trainers' gradients for the rows of one row shard: Σ weights[i] · parts[i],
/// added in order of i. A trainer that lacks a row contributes zero to it; parts of weight 0 are skipped.
/// Each row occurs once, ordered by table index and, within a table, by the hash of its id, so that the
/// result depends on the gradients alone.
StagedRows mergeRows(const RowShard& shard, std::span<const StagedRows> parts,
                     std::span<const float> weights);

}  // namespace psd
