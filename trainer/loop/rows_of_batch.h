#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/types/model_spec.h"
#include "trainer/client/api/client.h"
#include "trainer/task/batch.h"

namespace psd {

/// The lookups as features for RowBatch::make(), one each; valid as long as their ids.
std::vector<RowBatch::Feature> featuresOf(std::span<const RowLookup> lookups);

/// Makes the rows of a batch's lookups, which are the features from `first` on, visible in the batch; valid
/// until the next rows.make().
void bindRows(RowBatch& rows, size_t first, BatchRows& shown);
inline void bindRows(RowBatch& rows, size_t first, Batch& batch) { bindRows(rows, first, batch.rows()); }

/// gradient ← weight · gradient, for all rows of these tables.
void scaleRowGradients(RowBatch& rows, std::span<const uint32_t> tables, float weight);

/// Size of all values, or of all gradients, as float32.
uint64_t valueBytes(const RowBatch& rows);

/// The number of values that are not zero.
uint64_t nonZeroCount(const RowBatch& rows);

/// Names the first row whose gradient holds NaN or infinity, as "item holds nan in the row of id 17"; empty
/// if all are finite.
std::string describeNonFiniteRows(const ModelSpec& model, const RowBatch& rows);

/// A pool of RowBatches, which are reused when nothing references them. Owned by one thread.
class RowBatchPool {
 public:
  /// `client` has joined, and outlives it.
  std::shared_ptr<RowBatch> take(const Client& client);

 private:
  std::vector<std::shared_ptr<RowBatch>> batches_;  // as many as were in use at the same time
};

}  // namespace psd
