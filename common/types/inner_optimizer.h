#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace psd {

/// The optimizer of a trainer's local steps; algorithms and names are LibTorch's. A value type.
struct InnerOptimizer {
  enum class Type { sgd, adam, adamw };

  Type type = Type::sgd;
  double rate = 0.01;      ///< full learning rate
  double weightDecay = 0;  ///< adamw: the weight shrinks by rate times this; else added to the gradient
  double momentum = 0;     ///< sgd: 0 … below 1
  bool nesterov = false;   ///< sgd: needs a momentum
  std::array<double, 2> betas{0.9, 0.999};  ///< adam, adamw: each 0 … below 1
  double eps = 1e-8;                        ///< adam, adamw
  uint64_t warmupSteps = 0;  ///< over which the rate rises linearly; the last of them has the full rate
  uint64_t totalSteps = 0;   ///< end of the cosine decay, above warmupSteps; 0: the rate stays
  double rateMin = 0;        ///< from totalSteps on; at most `rate`

  bool operator==(const InnerOptimizer&) const = default;

  /// The rate of step `number` of the run, from 1.
  double rateAt(uint64_t number) const;
  /// "adamw lr=0.001 weight_decay=0.1, cosine warmup_steps=100 total_steps=20000"
  std::string describe() const;
  /// Whether every number is in its range.
  bool isValid() const;
};

/// "sgd", "adam", "adamw".
std::string_view nameOf(InnerOptimizer::Type type);

}  // namespace psd
