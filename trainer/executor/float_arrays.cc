#include "trainer/executor/float_arrays.h"

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

/// Arrays that nobody uses. Thread-safe; lives as long as any array.
class FloatArrays::Pool {
 public:
  struct Free {
    void operator()(float* values) const { std::free(values); }
  };
  using Array = std::unique_ptr<float, Free>;

  Array take(uint64_t bytes) {
    {
      const std::lock_guard hold(mutex_);
      if (!spare_.empty()) {
        Array array = std::move(spare_.back());
        spare_.pop_back();
        return array;
      }
    }
    return Array(static_cast<float*>(std::aligned_alloc(kAlignment, bytes)));
  }
  void giveBack(Array array) {
    const std::lock_guard hold(mutex_);
    if (spare_.size() < kSpareMax) spare_.push_back(std::move(array));
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::vector<Array> spare_;
};

FloatArrays::FloatArrays(uint64_t elements, std::shared_ptr<ByteBudget> budget)
    : elements_(elements), budget_(std::move(budget)), pool_(std::make_shared<Pool>()) {}

Result<std::shared_ptr<float>> FloatArrays::take() {
  const uint64_t bytes = elements_ * sizeof(float);
  auto lease = budget_->tryTake(bytes);
  if (!lease) {
    return Error{ErrorCode::overloaded,
                 fmt::format("memory_bytes ({}) are held by contexts; this takes another {}",
                             bytesText(budget_->bytesMax()), bytesText(bytes))};
  }
  Pool::Array array = pool_->take(bytes);
  if (!array) return Error{ErrorCode::overloaded, "no memory is left"};
  float* const values = array.release();
  return std::shared_ptr<float>(
      values, [pool = pool_, lease = std::make_shared<ByteBudget::Lease>(*std::move(lease))](float* back) {
        pool->giveBack(Pool::Array(back));
      });
}

Weights FloatArrays::share(const std::vector<Version>& versions, std::shared_ptr<float> fresh) {
  const std::lock_guard hold(mutex_);
  std::erase_if(shared_, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<const float>& known = shared_[versions];
  Weights same = known.lock();
  // Updates may land while parameters are read, and a daemon that begins anew counts from 0.
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
