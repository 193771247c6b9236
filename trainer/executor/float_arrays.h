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
#include "trainer/model/execution.h"

namespace psd {

/// Arrays as long as the model's layout, for stashed parameters and for gradients: taken from a budget, and
/// used again when they come back, as fresh memory costs a page fault for each page. A few that nobody uses
/// keep their share of the budget until somebody else needs it. Thread-safe; arrays may outlive it.
class FloatArrays {
 public:
  FloatArrays(uint64_t elements, std::shared_ptr<ByteBudget> budget);

  /// Some bytes of the budget, for `what`, a plural, for people. overloaded: it is spent; invalidArgument: it
  /// never has so many.
  Result<ByteBudget::Lease> lease(uint64_t bytes, std::string_view what);
  /// 64-byte aligned, contents unspecified. overloaded: the budget is spent.
  Result<std::shared_ptr<float>> take();

  /// Parameters that were pulled, as all contexts that saw the same are to hold them: `fresh`, or the same
  /// values of the same versions that some context holds already, so that they are there once.
  Weights share(const std::vector<Version>& versions, std::shared_ptr<float> fresh);
  /// The parameters that came last; null: none yet.
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
