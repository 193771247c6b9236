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

/// A trainable model: a loss of named tensors and parameters. Parameters and gradients are two flat arrays,
/// laid out by ModelLayout(spec()), which pulls fill and pushes send. On the CPU the model computes in these
/// arrays, so nothing is copied; for a CUDA device they are initially pinned host copies, which the calls
/// below transfer. Rows of embedding tables come with the batch, in host memory.
///
/// Owned by one thread. Does not include LibTorch, so that its users compile quickly and tests can implement
/// it.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelSpec& spec() const = 0;
  /// The columns of a batch that the model takes; it ignores others.
  virtual std::vector<ColumnSpec> inputs() const = 0;
  /// Human-readable: "cpu" or "cuda:0".
  virtual std::string device() const = 0;

  /// The index of the CUDA device; −1: the CPU.
  virtual int cudaDevice() const { return -1; }
  /// Moves the arrays below to memory of the CUDA device, in which the model then computes, so that nothing
  /// is copied there either; they keep their contents. Not for a model on the CPU; call before reserve() and
  /// before keeping a reference to an array.
  virtual Status moveArraysToDevice() {
    return {ErrorCode::invalidArgument, "the model computes on the CPU"};
  }
  /// The contents of one of the arrays below in host memory: the array itself, or a copy that is valid until
  /// the next call.
  virtual Result<std::span<const float>> onHost(std::span<const float> array) { return array; }

  /// 64-byte aligned, valid as long as the model; padding is and remains zero. Initially the seeded initial
  /// values.
  virtual std::span<float> parameters() = 0;
  /// 64-byte aligned, valid as long as the model; the result of the last computeGradients(). The caller may
  /// write to it; the model does not read that.
  virtual std::span<float> gradients() = 0;

  /// Sets the rank if it was not known at construction: reseeds what differs between ranks, such as dropout.
  /// Before the first computeGradients().
  virtual void assignRank(Rank) {}

  /// Allocates arrays for transfers that overlap with computation; at most once, before the first
  /// computeGradients(). gradients() then rotates among `gradientArrays` (>= 1) arrays, and with `spare`
  /// there is a second array of parameters. They have the same lifetime and padding as the first.
  virtual Status reserve(uint32_t gradientArrays, bool spare) = 0;
  /// The array for the parameters of a later step, which may be written while the model computes; empty if
  /// not reserved.
  virtual std::span<float> spareParameters() = 0;
  /// Swaps parameters() and spareParameters().
  virtual void swapParameters() = 0;
  /// gradients() becomes the least recently used array; the others keep their contents.
  virtual void rotateGradients() = 0;

  /// The rows of the tables of spec() that a batch needs, for its BatchRows. Random draws, such as the
  /// candidates of a sampled softmax, are made here: call once for each training batch, in their order.
  virtual std::vector<RowLookup> lookUp(const Batch&, Purpose) { return {}; }

  /// Whether the number of weights that are not zero is reported, among the values of the rows that samples
  /// look up.
  virtual bool countsWeights() const { return false; }

  /// Called when elements [begin, begin + count) of gradients() are final, padding included.
  using GradientsFinal = std::function<void(uint64_t begin, uint64_t count)>;
  /// Replaces gradients() by those of the mean loss over the batch (in training mode: with dropout), adds the
  /// gradients of the rows to the batch's BatchRows, and returns the loss. `whenFinal`, if given, is called
  /// on this thread, once for each element and as early as possible, and may modify these elements; after an
  /// error it has not been called for all.
  virtual Result<double> computeGradients(const Batch& batch, const GradientsFinal& whenFinal = {}) = 0;
  /// Scores the batch in evaluation mode: without dropout. The first metric is "loss", of which
  /// computeGradients() computes the gradients.
  virtual Result<Score> score(const Batch& batch) = 0;
};

}  // namespace psd
