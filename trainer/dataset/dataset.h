#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "trainer/task/batch.h"

namespace psd {

/// Shape of one image. A value type.
struct ImageShape {
  uint32_t channels = 1;
  uint32_t height = 0;
  uint32_t width = 0;

  size_t elementCount() const { return size_t{channels} * height * width; }
  bool operator==(const ImageShape&) const = default;
};

/// Part of a data set.
enum class Split { train, test };

/// How far the files of a data set have been read. A value type.
struct ReadProgress {
  uint64_t bytes = 0, totalBytes = 0;  ///< on the disk
  double seconds = 0;                  ///< since the start
  uint64_t badLines = 0;               ///< skipped so far
  std::string firstBadLine;            ///< of these: "FILE:LINE: what is wrong"
  bool done = false;
};

/// Options of opening a data set. A value type.
struct DatasetOptions {
  uint64_t seed = 1;      ///< of synthetic samples
  uint64_t badLines = 0;  ///< malformed lines that are skipped in the files of a split
  /// Called while the lines of files of sparse examples are checked, every two seconds, and at the end.
  std::function<void(const ReadProgress&)> onProgress = {};
};

/// A set of samples; each sample is one tensor per column. Immutable once opened, so thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual size_t sampleCount() const = 0;
  /// The columns of each sample. Splits may differ in the extents of those that vary from sample to sample.
  virtual const std::vector<ColumnSpec>& columns() const = 0;
  /// Human-readable: "60000 images from /data/mnist".
  virtual std::string describe() const = 0;

  /// The first sample of each block of samples that are read together, from 0 on, in ascending order. An
  /// order that takes the samples of few blocks at a time is then much faster than any other. Empty: all
  /// orders are as fast.
  virtual std::span<const uint32_t> blocks() const { return {}; }

  /// The most samples in a batch.
  virtual uint64_t batchSizeMax() const { return std::numeric_limits<uint64_t>::max(); }
  /// Replaces the contents of `batch` by the samples at `indices`, in that order: at most batchSizeMax(), all
  /// below sampleCount(). An error if a file cannot be read any more; the batch is then unspecified.
  virtual Status fill(std::span<const uint32_t> indices, Batch& batch) const = 0;
  /// Why a column of the source is not in columns(), such as a column of text; empty if the source has no
  /// column of that name.
  virtual std::string skipReason(const std::string& /*column*/) const { return ""; }
};

/// Columns of labelled images: f32 [channels, height, width], normalised, and i64, the class.
inline constexpr std::string_view kImage = "image", kLabel = "label";

/// Images stored as bytes and normalised as (pixel / 255 − mean) / deviation when a batch is filled.
/// Immutable, so thread-safe.
class ByteImages : public Dataset {
 public:
  /// `pixels` holds labels.size() images of `shape`, row-major; labels are below `classCount`.
  ByteImages(ImageShape shape, uint32_t classCount, std::vector<uint8_t> pixels, std::vector<uint8_t> labels,
             std::string description);

  size_t sampleCount() const override { return labels_.size(); }
  const std::vector<ColumnSpec>& columns() const override { return columns_; }
  std::string describe() const override { return description_; }
  Status fill(std::span<const uint32_t> indices, Batch& batch) const override;

 private:
  ImageShape shape_;
  std::vector<ColumnSpec> columns_;
  std::vector<uint8_t> pixels_;
  std::vector<uint8_t> labels_;
  std::string description_;
  std::array<float, 256> normalised_;  ///< by pixel value
};

}  // namespace psd
