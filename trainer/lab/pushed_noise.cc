#include "trainer/lab/pushed_noise.h"

#include <cmath>
#include <numbers>

namespace psd {
namespace {

/// Uniform in 0 < x ≤ 1.
double aboveZero(Random& random) { return static_cast<double>((random.next() >> 11) + 1) * 0x1p-53; }

}  // namespace

std::span<const float> PushedNoise::draw(std::optional<uint32_t> fragment) {
  std::vector<float>& drawn = drawn_[fragment];
  drawn.resize(layout_.totalElements());
  for (const TensorPlace& place : layout_.places()) {
    for (float& value : std::span(drawn).subspan(place.begin, place.count)) {  // Box-Muller transform
      const double radius = std::sqrt(-2 * std::log(aboveZero(random_)));
      value = static_cast<float>(deviation_ * radius * std::cos(2 * std::numbers::pi * aboveZero(random_)));
    }
  }
  return drawn;
}

}  // namespace psd
