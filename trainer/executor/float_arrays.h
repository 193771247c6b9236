#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "common/budget/byte_budget.h"
#include "common/status/status.h"
#include "common/types/ids.h"
#include "trainer/executor/stages/execution.h"

namespace psd {

/// A pool of arrays as long as the model's layout, for stashed parameters and for gradients. Arrays are
/// charged to a budget and reused, since fresh memory costs a page fault for each page. A few unused arrays
/// keep their share of the budget until it is needed elsewhere. Thread-safe; arrays may outlive it.
class FloatArrays {
 public:
  FloatArrays(uint64_t elements, std::shared_ptr<ByteBudget> budget);

  /// Leases bytes of the budget. `what`: what for, a plural noun for error messages. overloaded: the budget
  /// is exhausted; invalidArgument: `bytes` exceeds the whole budget.
  Result<ByteBudget::Lease> lease(uint64_t bytes, std::string_view what);
  /// An array, 64-byte aligned, with unspecified contents. overloaded: the budget is exhausted.
  Result<std::shared_ptr<float>> take();

  /// Deduplicates pulled parameters: returns `fresh`, or an equal array of the same versions that some
  /// context holds already, so that equal parameters are stored once.
  Weights share(const std::vector<Version>& versions, std::shared_ptr<float> fresh);
  /// The most recently pulled parameters; null if there are none yet.
  Weights newest() const;

  uint64_t elements() const { return elements_; }

 private:
  class Pool;

  const uint64_t elements_;
  const std::shared_ptr<ByteBudget> budget_;
  const std::shared_ptr<Pool> pool_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::vector<Version>, std::weak_ptr<const float>> shared_;
  Weights newest_;
};

}  // namespace psd
