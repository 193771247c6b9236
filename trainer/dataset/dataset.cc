#include "trainer/dataset/dataset.h"

#include <utility>

namespace psd {
namespace {

// Mean and standard deviation of MNIST's training pixels, as in PyTorch's MNIST example.
constexpr float kPixelMean = 0.1307f;
constexpr float kPixelDeviation = 0.3081f;

}  // namespace

ByteImages::ByteImages(ImageShape shape, uint32_t classCount, std::vector<uint8_t> pixels,
                       std::vector<uint8_t> labels, std::string description)
    : shape_(shape),
      columns_{{std::string(kImage), ElementType::f32, {shape.channels, shape.height, shape.width}},
               {std::string(kLabel), ElementType::i64, {}, classCount}},
      pixels_(std::move(pixels)),
      labels_(std::move(labels)),
      description_(std::move(description)) {
  for (size_t value = 0; value < normalised_.size(); ++value) {
    normalised_[value] = (static_cast<float>(value) / 255.f - kPixelMean) / kPixelDeviation;
  }
}

Status ByteImages::fill(std::span<const uint32_t> indices, Batch& batch) const {
  const size_t imageElements = shape_.elementCount();
  batch.reshape(columns_, indices.size());
  float* out = batch.values<float>(kImage).data();
  const std::span<int64_t> labels = batch.values<int64_t>(kLabel);
  for (size_t i = 0; i < indices.size(); ++i) {
    const uint8_t* image = pixels_.data() + indices[i] * imageElements;
    for (size_t pixel = 0; pixel < imageElements; ++pixel) *out++ = normalised_[image[pixel]];
    labels[i] = labels_[indices[i]];
  }
  return {};
}

}  // namespace psd
