#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"
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
/// nothing is copied; for a CUDA device they are at first pinned host copies, which the calls below carry
/// over.
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

  /// The index of that CUDA device; −1: it computes on the CPU.
  virtual int cudaDevice() const { return -1; }
  /// Makes the arrays below memory of the CUDA device, in which the model computes, so that nothing is copied
  /// there either; they keep what they hold. Not for a model on the CPU; before reserve() and whatever asks
  /// for an array that is to stay.
  virtual Status keepArraysOnDevice() {
    return {ErrorCode::invalidArgument, "the model computes on the CPU"};
  }
  /// What one of the arrays below holds, in host memory: itself, or a copy that lives until the next such
  /// call.
  virtual Result<std::span<const float>> onHost(std::span<const float> array) { return array; }

  /// 64-byte aligned, valid as long as the model; padding is zero and stays so. At first the seeded
  /// initial values.
  virtual std::span<float> parameters() = 0;
  /// 64-byte aligned, valid as long as the model; what the last computeGradients() left. What the caller
  /// writes there the model does not read.
  virtual std::span<float> gradients() = 0;

  /// Whose model this is, where that was not known when it was made: what differs between ranks, such as
  /// dropout, becomes that rank's. Before the first computeGradients().
  virtual void becomeRank(Rank) {}

  /// Makes room for transfers that overlap with computing; at most once, before the first computeGradients().
  /// gradients() then takes `gradientArrays` (>= 1) arrays in turn, and with `spare` there is a second array
  /// of parameters. Their memory lives and is padded like that of the first.
  virtual Status reserve(uint32_t gradientArrays, bool spare) = 0;
  /// Where the parameters of a later step can be put while the model computes; empty if not reserved.
  virtual std::span<float> spareParameters() = 0;
  /// parameters() and spareParameters() change places.
  virtual void swapParameters() = 0;
  /// gradients() becomes the array that was it the longest ago; the others keep what they hold.
  virtual void rotateGradients() = 0;

  /// Told that elements [begin, begin + count) of gradients() are final, padding included.
  using GradientsFinal = std::function<void(uint64_t begin, uint64_t count)>;
  /// Replaces gradients() by those of the mean loss over the batch (as in training: with dropout), and
  /// returns that loss. `whenFinal`, if given, is called on this thread for every element once, as early as
  /// can be, and may change those; after an error, not for all.
  virtual Result<double> computeGradients(const BatchView& batch, const GradientsFinal& whenFinal = {}) = 0;
  /// Scores the batch as in use: without dropout.
  virtual Result<Score> score(const BatchView& batch) = 0;
};

}  // namespace psd
