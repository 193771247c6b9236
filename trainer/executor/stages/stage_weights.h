#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include <torch/types.h>

#include "trainer/model/weights.h"

namespace psd {

/// The parameters of a stage on its device: elements [begin, begin + count) of the weights of passes. On the
/// CPU a view of the weights; on another device a copy, shared by all passes over the same weights, of which
/// the newest is kept for the next pass. Weights that are copied must not change. Thread-safe.
class StageWeights {
 public:
  StageWeights(torch::Device device, uint64_t begin, uint64_t count)
      : device_(device), begin_(begin), count_(count) {}

  const torch::Device& device() const { return device_; }
  /// Index of the stage's first element in the weights.
  uint64_t begin() const { return begin_; }
  /// The elements from begin() on, in the device's memory.
  Weights of(const Weights& weights);

 private:
  Weights copyOf(const Weights& weights) const;

  const torch::Device device_;
  const uint64_t begin_, count_;
  std::mutex mutex_;  // guards the members below
  /// Keyed by owner, not by address, since memory may be reused for other parameters.
  std::map<std::weak_ptr<const float>, std::weak_ptr<const float>, std::owner_less<>> copies_;
  Weights newest_;
};

}  // namespace psd
