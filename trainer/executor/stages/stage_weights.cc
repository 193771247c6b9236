#include "trainer/executor/stages/stage_weights.h"

#include <algorithm>

#include <torch/utils.h>

namespace psd {

Weights StageWeights::of(const Weights& weights) {
  if (device_.is_cpu()) return {weights, weights.get() + begin_};
  const std::lock_guard hold(mutex_);  // a second pass over the same weights waits for the copy
  std::erase_if(copies_, [](const auto& each) { return each.second.expired(); });
  if (const auto found = copies_.find(weights); found != copies_.end()) {
    if (Weights copy = found->second.lock()) return copy;
  }
  newest_ = nullptr;  // freed first, so that its memory can be reused
  newest_ = copyOf(weights);
  copies_.insert_or_assign(weights, newest_);
  return newest_;
}

Weights StageWeights::copyOf(const Weights& weights) const {
  const torch::NoGradGuard plain;
  // from_blob() takes no const pointer; the tensor is only read. The copy is complete when to() returns.
  const auto copy = std::make_shared<const torch::Tensor>(
      torch::from_blob(const_cast<float*>(weights.get()) + begin_, {static_cast<int64_t>(count_)})
          .to(device_));
  return {copy, copy->const_data_ptr<float>()};
}

}  // namespace psd
