#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

namespace psd {

/// Draws numbers 1 … n with probabilities proportional to 1 / number^exponent, by rejection-inversion
/// (Hörmann, Derflinger 1996), in constant time for any n. A value type.
class Zipf {
 public:
  /// `exponent` is above 0.
  Zipf(uint64_t n, double exponent)
      : n_(static_cast<double>(n)),
        exponent_(exponent),
        first_(integral(1.5) - 1),
        last_(integral(n_ + 0.5)),
        sure_(2 - inverse(integral(2.5) - std::exp(-exponent_ * std::log(2.0)))) {}

  template <class Engine>
  uint64_t operator()(Engine& engine) const {
    std::uniform_real_distribution<double> uniform(0, 1);
    for (;;) {
      const double u = last_ + uniform(engine) * (first_ - last_);
      const double x = inverse(u);
      const double k = std::clamp(std::floor(x + 0.5), 1.0, n_);
      if (k - x <= sure_ || u >= integral(k + 0.5) - std::exp(-exponent_ * std::log(k))) {
        return static_cast<uint64_t>(k);
      }
    }
  }

 private:
  /// ∫ x^-exponent, and its inverse; both stay accurate near exponent 1, where the plain formulas lose all
  /// digits.
  double integral(double x) const {
    const double log = std::log(x), t = (1 - exponent_) * log;
    return (std::abs(t) > 1e-8 ? std::expm1(t) / t : 1 + t / 2) * log;
  }
  double inverse(double y) const {
    const double t = std::max(-1.0, y * (1 - exponent_));
    return std::exp((std::abs(t) > 1e-8 ? std::log1p(t) / t : 1 - t / 2) * y);
  }

  double n_, exponent_, first_, last_, sure_;
};

}  // namespace psd
