#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/row_batch.h"
#include "trainer/executor/float_arrays.h"
#include "trainer/model/execution.h"
#include "trainer/task/batch_rows.h"

namespace psd {

/// The rows of embedding tables that one pass takes: their values as its forward pass sees them, and their
/// gradients. Has a share of the budget as long as it lives. Used by one thread at a time: that which pulls,
/// and then the pass's.
class ContextRows : public std::enable_shared_from_this<ContextRows> {
 public:
  /// `empty`: as a client makes it. overloaded: the budget is spent; invalidArgument: it never has so much.
  static Result<std::shared_ptr<ContextRows>> make(RowBatch empty, std::vector<RowLookup> lookups,
                                                   FloatArrays& budget);

  /// To be pulled into, and pushed.
  RowBatch& batch() { return batch_; }
  const RowBatch& batch() const { return batch_; }
  /// What the pass sees of it, once it was pulled; keeps this object.
  PassRows forPass();

 private:
  explicit ContextRows(RowBatch empty) : batch_(std::move(empty)) {}

  ByteBudget::Lease idLease_, valueLease_;  // first: what they are for goes before them
  RowBatch batch_;
  BatchRows shown_;
};

}  // namespace psd
