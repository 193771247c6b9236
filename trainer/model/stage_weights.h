#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include <torch/types.h>

#include "trainer/model/weights.h"

namespace psd {

/// The parameters of a stage where it computes: elements [begin, begin + count) of the weights of passes. On
/// the CPU these themselves; on another device a copy, which all passes over the same weights share, and of
/// which the newest stays for the next pass. Weights may not change then. Thread-safe.
class StageWeights {
 public:
  StageWeights(torch::Device device, uint64_t begin, uint64_t count)
      : device_(device), begin_(begin), count_(count) {}

  const torch::Device& device() const { return device_; }
  /// Where they begin among all.
  uint64_t begin() const { return begin_; }
  /// Element begin() and those that follow, in the device's memory.
  Weights of(const Weights& weights);

 private:
  Weights copyOf(const Weights& weights) const;

  const torch::Device device_;
  const uint64_t begin_, count_;
  std::mutex mutex_;  // guards what follows
  /// By the owner, not by the address: the same memory may hold other parameters later.
  std::map<std::weak_ptr<const float>, std::weak_ptr<const float>, std::owner_less<>> copies_;
  Weights newest_;
};

}  // namespace psd
