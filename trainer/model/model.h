#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "common/types/model_spec.h"
#include "trainer/task/batch.h"
#include "trainer/task/score.h"

namespace psd {

/// What is trained: a loss of named tensors and of parameters. Parameters and gradients are two flat arrays,
/// laid out by ModelLayout(spec()): what a pull fills and a push sends. On the CPU these arrays are the
/// memory in which the model computes, so nothing is copied; for a CUDA device they are at first pinned host
/// copies, which the calls below carry over. Rows of embedding tables come with the batch, in host memory.
///
/// Owned by one thread. Free of LibTorch, so that its users compile quickly and tests can stand in.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelSpec& spec() const = 0;
  /// The columns of a batch that it takes; others it passes over.
  virtual std::vector<ColumnSpec> inputs() const = 0;
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

  /// Which rows of the tables of spec() a batch takes, for its BatchRows. What is drawn by chance, such as
  /// the candidates of a sampled softmax, is drawn here: to be called once for each batch that is trained on,
  /// in their order.
  virtual std::vector<RowLookup> lookUp(const Batch&, Purpose) { return {}; }

  /// Told that elements [begin, begin + count) of gradients() are final, padding included.
  using GradientsFinal = std::function<void(uint64_t begin, uint64_t count)>;
  /// Replaces gradients() by those of the mean loss over the batch (as in training: with dropout), adds those
  /// of its rows to what its BatchRows say, and returns that loss. `whenFinal`, if given, is called on this
  /// thread for every element once, as early as can be, and may change those; after an error, not for all.
  virtual Result<double> computeGradients(const Batch& batch, const GradientsFinal& whenFinal = {}) = 0;
  /// Scores the batch as in use: without dropout. "loss" is the first metric, what computeGradients() has the
  /// gradients of.
  virtual Result<Score> score(const Batch& batch) = 0;
};

}  // namespace psd
