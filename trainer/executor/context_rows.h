#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/api/row_batch.h"
#include "trainer/executor/float_arrays.h"
#include "trainer/executor/stages/execution.h"
#include "trainer/task/batch_rows.h"

namespace psd {

/// The rows of embedding tables that one pass uses: their values as its forward pass reads them, and their
/// gradients. Holds leases on the memory budget for its lifetime. Used by one thread at a time: first the
/// thread that pulls, then the one that computes the pass.
class ContextRows : public std::enable_shared_from_this<ContextRows> {
 public:
  /// `empty`: from Client::makeRowBatch(). overloaded: the budget is exhausted; invalidArgument: the rows
  /// exceed the whole budget.
  static Result<std::shared_ptr<ContextRows>> make(RowBatch empty, std::vector<RowLookup> lookups,
                                                   FloatArrays& budget);

  /// The destination of the pull, and the source of the push.
  RowBatch& batch() { return batch_; }
  const RowBatch& batch() const { return batch_; }
  /// The rows as the pass sees them, after the pull. The result keeps this object alive.
  PassRows forPass();

 private:
  explicit ContextRows(RowBatch empty) : batch_(std::move(empty)) {}

  ByteBudget::Lease idLease_, valueLease_;  // first: destroyed after the memory that they account for
  RowBatch batch_;
  BatchRows batchRows_;
};

}  // namespace psd
