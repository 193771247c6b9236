#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <string>

namespace psd {

/// The learning rate as a function of the update number. A value type.
///
/// The rate rises linearly over the first `warmupUpdates` and is full at the last of them. From there, `step`
/// multiplies it by gamma every `everyUpdates`; `cosine` (Loshchilov, Hutter 2017, without restarts)
/// decreases it to `lrMin` at update `totalUpdates`, warm-up included, where it stays.
struct Schedule {
  enum class Type { constant, step, cosine };

  Type type = Type::constant;
  uint64_t warmupUpdates = 0;
  uint64_t everyUpdates = 1;
  double gamma = 0.1;
  uint64_t totalUpdates = 1;  ///< more than warmupUpdates
  double lrMin = 0;

  /// The rate of update `number` (1, 2, …) for the full rate `lr`.
  double learningRate(double lr, uint64_t number) const;
  /// "cosine total_updates=1000 lr_min=0.001"; empty for a constant rate without warm-up.
  std::string describe() const;
};

}  // namespace psd
