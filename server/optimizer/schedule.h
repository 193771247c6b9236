#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <string>

namespace psd {

/// The learning rate as a function of the update's number. A value type.
///
/// The first `warmupUpdates` rise linearly, the last of them has the full rate. What follows counts
/// from there: `step` multiplies by gamma every `everyUpdates`; `cosine` (Loshchilov, Hutter 2017,
/// without restarts) falls to `lrMin` at update `totalUpdates`, warm-up included, and stays there.
struct Schedule {
  enum class Type { constant, step, cosine };

  Type type = Type::constant;
  uint64_t warmupUpdates = 0;
  uint64_t everyUpdates = 1;
  double gamma = 0.1;
  uint64_t totalUpdates = 1;  ///< more than warmupUpdates
  double lrMin = 0;

  /// The rate of update `number` (1, 2, …) where `lr` is the full rate.
  double learningRate(double lr, uint64_t number) const;
  /// "cosine total_updates=1000 lr_min=0.001"; empty for a constant rate without warm-up.
  std::string describe() const;
};

}  // namespace psd
