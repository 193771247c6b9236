#include "trainer/executor/float_arrays.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/text/quantity.h"

namespace psd {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSpareMax = 8;

}  // namespace

/// Unused arrays, with their leases on the budget. Thread-safe; lives as long as any array.
class FloatArrays::Pool {
 public:
  struct Free {
    void operator()(float* values) const { std::free(values); }
  };
  struct Array {
    ByteBudget::Lease lease;
    std::unique_ptr<float, Free> values;
  };

  std::optional<Array> take() {
    const std::lock_guard hold(mutex_);
    if (spare_.empty()) return {};
    Array array = std::move(spare_.back());
    spare_.pop_back();
    return array;
  }
  void returnArray(Array array) {
    const std::lock_guard hold(mutex_);
    if (spare_.size() < kSpareMax) spare_.push_back(std::move(array));
  }
  void clear() {
    const std::lock_guard hold(mutex_);
    spare_.clear();
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::vector<Array> spare_;
};

FloatArrays::FloatArrays(uint64_t elements, std::shared_ptr<ByteBudget> budget)
    : elements_(elements), budget_(std::move(budget)), pool_(std::make_shared<Pool>()) {}

Result<ByteBudget::Lease> FloatArrays::lease(uint64_t bytes, std::string_view what) {
  auto lease = budget_->tryTake(bytes);
  if (!lease) {
    pool_->clear();
    lease = budget_->tryTake(bytes);
  }
  if (lease) return *std::move(lease);
  if (bytes > budget_->bytesMax()) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("{} take {}; memory_bytes allows {} in total: send fewer samples", what,
                             bytesText(bytes), bytesText(budget_->bytesMax()))};
  }
  return Error{ErrorCode::overloaded, fmt::format("of memory_bytes ({}) {} are in use; {} take another {}",
                                                  bytesText(budget_->bytesMax()), bytesText(budget_->used()),
                                                  what, bytesText(bytes))};
}

Result<std::shared_ptr<float>> FloatArrays::take() {
  std::optional<Pool::Array> array = pool_->take();
  if (!array) {
    const uint64_t bytes = std::max(elements_ * sizeof(float), uint64_t{kAlignment});
    PSD_ASSIGN_OR_RETURN(ByteBudget::Lease lease, this->lease(bytes, "parameters or gradients"));
    array.emplace(Pool::Array{std::move(lease), {}});
    array->values.reset(static_cast<float*>(std::aligned_alloc(kAlignment, bytes)));
    if (!array->values) return Error{ErrorCode::overloaded, "no memory is left"};
  }
  float* const values = array->values.get();
  // The deleter returns the array when the last strong reference is released. It takes the array by shared
  // pointer because weak references would keep the deleter itself alive.
  return std::shared_ptr<float>(
      values, [pool = pool_, array = std::make_shared<Pool::Array>(*std::move(array))](float*) {
        pool->returnArray(std::move(*array));
      });
}

Weights FloatArrays::share(const std::vector<Version>& versions, std::shared_ptr<float> fresh) {
  const std::lock_guard hold(mutex_);
  std::erase_if(shared_, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<const float>& known = shared_[versions];
  Weights same = known.lock();
  // Equal versions do not imply equal values: updates may be applied during a pull, and a daemon without
  // saved state counts versions from 0.
  const bool equal = same && std::memcmp(same.get(), fresh.get(), elements_ * sizeof(float)) == 0;
  newest_ = equal ? same : Weights(std::move(fresh));
  known = newest_;
  return newest_;
}

Weights FloatArrays::newest() const {
  const std::lock_guard hold(mutex_);
  return newest_;
}

}  // namespace psd
