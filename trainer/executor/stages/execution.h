#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "trainer/model/device.h"
#include "trainer/model/model_list.h"
#include "trainer/model/weights.h"
#include "trainer/task/batch.h"
#include "trainer/task/loss_spec.h"
#include "trainer/task/named_tensor.h"

namespace psd {

/// The embedding rows of a pass. Holding the pointer keeps their memory alive.
using PassRows = std::shared_ptr<const BatchRows>;

/// A completed forward pass and the state for its backward pass. Used by one thread at a time, not
/// necessarily the same.
class ForwardPass {
 public:
  virtual ~ForwardPass() = default;

  virtual const std::vector<NamedTensor>& outputs() const = 0;
  /// Writes the gradients of the parameters into all of `gradient`, laid out by ModelLayout(spec()), and
  /// those of the rows into the pass's PassRows. `outputGradients`: by name of the output; an omitted output
  /// has no gradient. At most once, and only after a training pass. invalidArgument: names, types or shapes
  /// do not match the outputs; nonFinite: NaN or infinity.
  virtual Status backward(const std::vector<NamedTensor>& outputGradients, std::span<float> gradient) = 0;
};

/// A model whose forward and backward passes are separate calls and run concurrently: each pass has its own
/// network, bound to the weights it is given, so that passes share nothing else. Thread-safe; passes may
/// outlive it.
class ExecutionModel {
 public:
  virtual ~ExecutionModel() = default;

  virtual const ModelSpec& spec() const = 0;
  /// The columns that a pass takes; the caller computes the loss and has its columns.
  virtual const std::vector<ColumnSpec>& inputs() const = 0;
  /// The loss for callers that have none of their own.
  virtual LossSpec loss() const { return {}; }
  /// The device of each stage; a single one if the model is not staged.
  virtual std::vector<Device> devices() const { return {Device()}; }
  /// Why no further pass can be computed, because a device of this process has failed permanently; nullopt:
  /// no fault.
  virtual std::optional<std::string> fault() const { return {}; }
  /// Seeded, like those of Model; laid out by ModelLayout(spec()), 64-byte aligned.
  virtual Weights initialValues() const = 0;

  /// The rows of the tables of spec() that a pass over these inputs needs. The inputs have passed
  /// checkInputs().
  virtual Result<std::vector<RowLookup>> lookUp(const std::vector<NamedTensor>& /*inputs*/,
                                                bool /*training*/) {
    return std::vector<RowLookup>();
  }
  /// `inputs` have passed checkInputs(); `rows` are those of lookUp(), null if spec() has no tables. In
  /// training dropout is active, with a generator that all passes of the process share. The error is
  /// LibTorch's or the network's; overloaded: the device is out of memory; unavailable: there is a fault().
  virtual Result<std::unique_ptr<ForwardPass>> forward(Weights weights, std::vector<NamedTensor> inputs,
                                                       bool training, PassRows rows = nullptr) = 0;
};

/// Names of the built-in models that makeExecutionModel() supports, and of those that can be divided into
/// stages.
inline constexpr std::array<std::string_view, 11> kExecutableModels{
    "deepfm", "dlrm", "fm", "gpt", "logistic", "lstm_lm", "mf", "mlp", "mnist_cnn", "resnet20", "svm"};
inline constexpr std::array<std::string_view, 3> kStagedModels{"mlp", "mnist_cnn", "resnet20"};

/// A stage after the first: its first layer and its device. A value type.
struct StageBegin {
  std::string layer;
  Device device;  ///< as chooseDevice() returned it
};

/// Where a model computes, and how it is cut into stages, each with a thread of its own, and batches into
/// micro-batches that go through them. A value type.
struct ExecutionOptions {
  Device device;                   ///< of the model, or of its first stage; as returned by chooseDevice()
  std::vector<StageBegin> stages;  ///< after the first; empty: the model is not staged
  uint32_t microBatches = 4;
  uint32_t threads = 1;  ///< LibTorch compute threads per stage
};

/// Builds a model; invalidArgument: it has no outputs, or not the layers named in `stages`, whose index the
/// message gives. Any other error: a device cannot be used.
Result<std::unique_ptr<ExecutionModel>> makeExecutionModel(const ModelChoice& choice, uint64_t seed,
                                                           const ExecutionOptions& options = {});

/// Sets the number of threads with which LibTorch computes in the calling thread.
void useComputeThreads(uint32_t threads);

}  // namespace psd
