#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/types/model_layout.h"
#include "trainer/dataset/random.h"

namespace psd {

/// Gaussian noise that a Byzantine trainer pushes instead of gradients, drawn for each push. Owned by the
/// trainer's thread.
class PushedNoise {
 public:
  PushedNoise(const ModelSpec& model, double deviation, uint64_t seed)
      : layout_(model), deviation_(deviation), random_(seed) {}

  /// Noise for all dense parameters, in the model's layout; valid until the next call for the same fragment,
  /// as pushes of several fragments may be in flight.
  std::span<const float> draw(std::optional<uint32_t> fragment);

 private:
  const ModelLayout layout_;
  const double deviation_;
  Random random_;
  std::map<std::optional<uint32_t>, std::vector<float>> drawn_;
};

}  // namespace psd
