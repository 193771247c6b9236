#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "common/types/model_spec.h"

namespace psd {

/// Labelled images in host memory. A view.
struct BatchView {
  std::span<const float> images;    ///< [n, …inputShape], n = labels.size()
  std::span<const int64_t> labels;  ///< [n]
};

/// How well a model does on some samples. A value type.
struct Score {
  double lossSum = 0;  ///< over the samples
  uint64_t correct = 0;
  uint64_t samples = 0;

  double meanLoss() const { return lossSum / static_cast<double>(samples); }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(samples); }
  Score& operator+=(const Score& other) {
    lossSum += other.lossSum;
    correct += other.correct;
    samples += other.samples;
    return *this;
  }
};

/// A classifier whose parameters and gradients are two flat arrays, laid out by ModelLayout(spec()): what
/// a pull fills and a push sends. On the CPU these arrays are the memory in which the model computes, so
/// nothing is copied; on a CUDA device they are pinned host copies, which the calls below carry over.
///
/// Owned by one thread. Free of LibTorch, so that its users compile quickly and tests can stand in.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelSpec& spec() const = 0;
  /// Shape of one sample.
  virtual std::vector<uint64_t> inputShape() const = 0;
  virtual uint32_t classCount() const = 0;
  /// For people: "cpu" or "cuda:0".
  virtual std::string device() const = 0;

  /// 64-byte aligned, valid as long as the model; padding is zero and stays so. At first the seeded
  /// initial values.
  virtual std::span<float> parameters() = 0;
  /// 64-byte aligned, valid as long as the model; what the last computeGradients() left.
  virtual std::span<const float> gradients() const = 0;

  /// Replaces gradients() by those of the mean loss over the batch (as in training: with dropout), and
  /// returns that loss.
  virtual Result<double> computeGradients(const BatchView& batch) = 0;
  /// Scores the batch as in use: without dropout.
  virtual Result<Score> score(const BatchView& batch) = 0;
};

}  // namespace psd
