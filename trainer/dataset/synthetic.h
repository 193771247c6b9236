#pragma once

#include <cstdint>
#include <memory>

#include "trainer/dataset/dataset.h"

namespace psd {

inline constexpr uint32_t kSyntheticSamplesDefault = 4000;
inline constexpr uint32_t kSyntheticSamplesMax = 1'000'000;

/// A learnable set of 28 × 28 images in 10 classes, generated without files: each class has a random pattern
/// of dark and light pixels, each image its class's pattern plus noise. A pure function of the arguments, the
/// same on every machine. The test split has a quarter of `trainSamples` (at least one) and shares the
/// patterns.
std::unique_ptr<Dataset> makeSynthetic(uint32_t trainSamples, Split split, uint64_t seed);

}  // namespace psd
