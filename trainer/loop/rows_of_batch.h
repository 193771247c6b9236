#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/types/model_spec.h"
#include "trainer/client/client.h"
#include "trainer/task/batch.h"

namespace psd {

/// The lookups as RowBatch::make() takes them, one feature each; valid as long as their ids.
std::vector<RowBatch::Feature> featuresOf(std::span<const RowLookup> lookups);

/// Lets a batch see the rows that were made of its lookups, which are those features from `first` on: as long
/// as `rows` is not made anew.
void showRows(RowBatch& rows, size_t first, BatchRows& shown);
inline void showRows(RowBatch& rows, size_t first, Batch& batch) { showRows(rows, first, batch.rows()); }

/// gradient ← weight · gradient, of all rows of these tables.
void scaleRowGradients(RowBatch& rows, std::span<const uint32_t> tables, float weight);

/// Bytes of all values, or gradients, as float32.
uint64_t valueBytes(const RowBatch& rows);

/// Names the first row whose gradient holds NaN or infinity, as "item holds nan in the row of id 17"; empty
/// when all are finite.
std::string describeNonFiniteRows(const ModelSpec& model, const RowBatch& rows);

/// Batches of rows that are used again once nothing refers to them. Owned by one thread.
class RowBatchPool {
 public:
  /// `client` has joined, and outlives it.
  std::shared_ptr<RowBatch> take(const Client& client);

 private:
  std::vector<std::shared_ptr<RowBatch>> batches_;  // as many as were in use at a time
};

}  // namespace psd
