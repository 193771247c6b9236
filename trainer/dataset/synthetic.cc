#include "trainer/dataset/synthetic.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "trainer/dataset/random.h"

namespace psd {
namespace {

constexpr ImageShape kShape{1, 28, 28};
constexpr uint32_t kSyntheticClasses = 10;
constexpr uint64_t kPatternStream = 0;
constexpr uint64_t kTrainStream = 1;
constexpr uint64_t kTestStream = 2;

/// One brightness per class and pixel: three quarters of the pixels are dark, the others light. As in MNIST,
/// the mean is small, so that the same learning rates work.
std::vector<uint8_t> makePatterns(uint64_t seed) {
  Random random(seed, kPatternStream);
  std::vector<uint8_t> patterns(kSyntheticClasses * kShape.elementCount());
  for (uint8_t& pixel : patterns) pixel = random.below(4) == 0 ? 90 : 30;
  return patterns;
}

/// A bell-shaped value in −30 … 30 from four random 4-bit numbers.
int noise(uint32_t bits) {
  const uint32_t sum = (bits & 15) + (bits >> 4 & 15) + (bits >> 8 & 15) + (bits >> 12 & 15);
  return static_cast<int>(sum) - 30;
}

}  // namespace

std::unique_ptr<Dataset> makeSynthetic(uint32_t trainSamples, Split split, uint64_t seed) {
  const bool isTrain = split == Split::train;
  const uint32_t samples = isTrain ? trainSamples : std::max(1u, trainSamples / 4);
  const size_t imageElements = kShape.elementCount();
  const std::vector<uint8_t> patterns = makePatterns(seed);
  Random random(seed, isTrain ? kTrainStream : kTestStream);

  std::vector<uint8_t> labels(samples);
  std::vector<uint8_t> pixels(samples * imageElements);
  uint8_t* out = pixels.data();
  for (uint8_t& label : labels) {
    label = static_cast<uint8_t>(random.below(kSyntheticClasses));
    const uint8_t* pattern = patterns.data() + label * imageElements;
    for (size_t i = 0; i < imageElements; i += 2) {  // one random number for two pixels
      const uint64_t bits = random.next();
      *out++ = static_cast<uint8_t>(pattern[i] + noise(static_cast<uint32_t>(bits)));
      *out++ = static_cast<uint8_t>(pattern[i + 1] + noise(static_cast<uint32_t>(bits >> 32)));
    }
  }
  return std::make_unique<ByteImages>(kShape, kSyntheticClasses, std::move(pixels), std::move(labels),
                                      std::to_string(samples) + " synthetic images");
}

}  // namespace psd
