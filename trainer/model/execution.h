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

/// The rows of embedding tables that a pass computes with. Whoever holds them keeps their memory.
using PassRows = std::shared_ptr<const BatchRows>;

/// A forward pass that was computed, and what its backward pass needs. Used by one thread at a time,
/// whichever.
class ForwardPass {
 public:
  virtual ~ForwardPass() = default;

  virtual const std::vector<NamedTensor>& outputs() const = 0;
  /// Writes the gradients of the parameters into `gradient`, all of it, which is laid out by
  /// ModelLayout(spec()), and those of its rows to where its PassRows say. `outputGradients`: of outputs by
  /// their names; one that is left out has none. At most once, and only after a pass in training.
  /// invalidArgument: they are not as the outputs are; nonFinite: they hold NaN.
  virtual Status backward(const std::vector<NamedTensor>& outputGradients, std::span<float> gradient) = 0;
};

/// A model of which forward and backward passes are computed apart, many at once: each has a network of its
/// own, bound to the weights that it is given, so that nothing is shared between passes but those.
/// Thread-safe; passes outlive it.
class ExecutionModel {
 public:
  virtual ~ExecutionModel() = default;

  virtual const ModelSpec& spec() const = 0;
  /// The columns that a pass takes; the loss, and what else that takes, is the caller's.
  virtual const std::vector<ColumnSpec>& inputs() const = 0;
  /// What a caller that has no loss of its own is to compute of the outputs.
  virtual LossSpec loss() const { return {}; }
  /// Of each of its stages; of a model that is not cut, one.
  virtual std::vector<Device> devices() const { return {Device()}; }
  /// Why no pass can be computed any more, as a device of this process has failed for good; nothing: they
  /// can.
  virtual std::optional<std::string> fault() const { return {}; }
  /// Seeded, as those of Model are; laid out by ModelLayout(spec()), 64-byte aligned.
  virtual Weights initialValues() const = 0;

  /// Which rows of the tables of spec() a pass over these inputs takes, which are as checkInputs() wants
  /// them.
  virtual Result<std::vector<RowLookup>> lookUp(const std::vector<NamedTensor>& /*inputs*/,
                                                bool /*training*/) {
    return std::vector<RowLookup>();
  }
  /// `inputs` are as checkInputs() wants them; `rows` are those of lookUp(), null where spec() has no tables.
  /// In training dropout drops, by a generator that all passes of the process share. The error is LibTorch's,
  /// or the network's; overloaded: the device has no memory left; unavailable: there is a fault().
  virtual Result<std::unique_ptr<ForwardPass>> forward(Weights weights, std::vector<NamedTensor> inputs,
                                                       bool training, PassRows rows = nullptr) = 0;
};

/// The names of the built-in models that makeExecutionModel() takes, and of those of them that can be cut
/// into stages.
inline constexpr std::array<std::string_view, 8> kExecutableModels{"dlrm", "gpt",       "lstm_lm",  "mf",
                                                                   "mlp",  "mnist_cnn", "resnet20", "svm"};
inline constexpr std::array<std::string_view, 3> kStagedModels{"mlp", "mnist_cnn", "resnet20"};

/// A stage after the first: the layer with which it begins, and where it computes. A value type.
struct StageBegin {
  std::string layer;
  Device device;  ///< as chooseDevice() returned it
};

/// Where a model computes, and how it is cut into stages, each with a thread of its own, and batches into
/// micro-batches that go through them. A value type.
struct ExecutionOptions {
  Device device;  ///< of the whole model, or of its first stage; as chooseDevice() returned it
  std::vector<StageBegin> stages;  ///< those after the first; empty: it is not cut
  uint32_t microBatches = 4;
  uint32_t threads = 1;  ///< that LibTorch computes with, of each stage
};

/// Builds a model; invalidArgument: it gives no outputs, or has no such layers, of which the message names
/// the place in `stages`. Any other error: a device cannot be used.
Result<std::unique_ptr<ExecutionModel>> makeExecutionModel(const ModelChoice& choice, uint64_t seed,
                                                           const ExecutionOptions& options = {});

/// How many threads LibTorch computes with in the calling thread.
void useComputeThreads(uint32_t threads);

}  // namespace psd
