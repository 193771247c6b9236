#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace psd {

/// Shape of one image. A value type.
struct ImageShape {
  uint32_t channels = 1;
  uint32_t height = 0;
  uint32_t width = 0;

  size_t elementCount() const { return size_t{channels} * height * width; }
  bool operator==(const ImageShape&) const = default;
};

/// Labelled images in host memory, as a model takes them. Reused from step to step, so that its
/// memory is allocated once. Owned by one thread.
struct Batch {
  std::vector<float> images;    ///< [size, channels, height, width], normalised
  std::vector<int64_t> labels;  ///< [size], 0 … classCount − 1

  size_t size() const { return labels.size(); }
};

/// Which part of a data set.
enum class Split { train, test };

/// Labelled images. Immutable once opened, so thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual size_t sampleCount() const = 0;
  virtual ImageShape imageShape() const = 0;
  virtual uint32_t classCount() const = 0;
  /// For people: "60000 images from /data/mnist".
  virtual std::string describe() const = 0;

  /// Replaces what `batch` holds by the samples named, in that order. Indices are below sampleCount().
  virtual void fill(std::span<const uint32_t> indices, Batch& batch) const = 0;
};

/// Images that are kept as bytes and normalised as (pixel / 255 − mean) / deviation when a batch is
/// filled. Immutable, so thread-safe.
class ByteImages : public Dataset {
 public:
  /// `pixels` holds labels.size() images of `shape`, row-major; labels are below `classCount`.
  ByteImages(ImageShape shape, uint32_t classCount, std::vector<uint8_t> pixels, std::vector<uint8_t> labels,
             std::string description);

  size_t sampleCount() const override { return labels_.size(); }
  ImageShape imageShape() const override { return shape_; }
  uint32_t classCount() const override { return classCount_; }
  std::string describe() const override { return description_; }
  void fill(std::span<const uint32_t> indices, Batch& batch) const override;

 private:
  ImageShape shape_;
  uint32_t classCount_;
  std::vector<uint8_t> pixels_;
  std::vector<uint8_t> labels_;
  std::string description_;
  std::array<float, 256> normalised_;  ///< by pixel value
};

}  // namespace psd
