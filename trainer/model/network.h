#pragma once

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "trainer/task/batch.h"
#include "trainer/task/loss_spec.h"
#include "trainer/task/score.h"

namespace psd {

/// The tensors of a batch by name, on the model's device: each column as [samples, …column.shape]; each
/// lookup as its rows [ids, dim], in the order of its ids, and the ids as i64 [ids] under its name + ".ids".
using Tensors = std::map<std::string, torch::Tensor, std::less<>>;

/// An error of a user's network or of its outputs: one human-readable line. Thrown only within this folder,
/// where LibTorch throws its own exceptions.
class NetworkError : public std::runtime_error {
 public:
  explicit NetworkError(const std::string& what, ErrorCode code = ErrorCode::internal)
      : std::runtime_error(what), code_(code) {}
  /// ErrorCode::nonFinite if the loss was not finite: training has diverged.
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// Thrown if a module from a file wrote to a parameter.
class ParameterWritten : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

/// Result of a training step of a network that computes its own gradients.
struct GradientStep {
  double loss = 0;
  std::vector<torch::Tensor> gradients;  ///< in the order of trained()
  Tensors rowGradients;  ///< of each lookup's gathered rows, [ids, dim] or with more dimensions, by name
};

/// A layer of a network. `run` is valid as long as the network.
struct Layer {
  std::string name;
  std::function<torch::Tensor(const torch::Tensor&)> run;
};

/// A model in terms of LibTorch. Its trained tensors, in order, become the ModelSpec. The caller is
/// responsible for train(), eval() and gradients. Includes LibTorch: only the files of this folder that build
/// networks include it.
class Network : public torch::nn::Module {
 public:
  /// The trained f32 leaf tensors by name, in a fixed order; by default the named parameters.
  virtual std::vector<std::pair<std::string, torch::Tensor>> trained() const {
    std::vector<std::pair<std::string, torch::Tensor>> tensors;
    for (const auto& parameter : named_parameters()) tensors.emplace_back(parameter.key(), parameter.value());
    return tensors;
  }
  /// Moves all other state, such as buffers, to the device. Called once, and not for a staged network.
  virtual void placeOn(torch::Device) {}
  /// The columns of a batch that the network takes; `batch` below has these.
  virtual std::vector<ColumnSpec> inputs() const = 0;
  /// The embedding tables; in the ModelSpec they follow the parameters.
  virtual std::vector<TableSpec> tables() const { return {}; }
  /// See Model::lookUp(); `batch` below has these rows. Random draws use LibTorch's generator.
  virtual std::vector<RowLookup> lookUp(const Batch&, Purpose) { return {}; }
  /// The mean loss over a batch, a differentiable scalar.
  virtual torch::Tensor loss(const Tensors&) {
    throw NetworkError("the model computes no loss without gradients");
  }
  /// Whether the network computes its own gradients without autograd: step() replaces loss(). CPU only.
  virtual bool computesGradients() const { return false; }
  virtual GradientStep step(const Tensors&) { throw NetworkError("the model computes no gradients"); }
  /// The columns that outputs() takes: inputs() without those that only the loss needs. Empty: the network
  /// has no outputs().
  virtual std::vector<ColumnSpec> outputInputs() const { return {}; }
  /// The layers between the only column of outputInputs() and the only output of outputs(), at which the
  /// network can be divided into stages: each takes the output of the previous one, samples are independent,
  /// and layers share no parameters. trained() has the parameters in the order of the layers, and the name of
  /// a layer's first parameter begins with the layer's name and a dot. Empty: the network cannot be divided.
  virtual std::vector<Layer> layers() { return {}; }
  /// Whether outputs() runs code of a module from a file, which may write to parameters.
  virtual bool mayWrite() const { return false; }
  /// Differentiable outputs by name, each [samples, …], from which the caller computes a loss. `batch` has
  /// the columns of outputInputs() and the rows that lookUp() needs for these.
  virtual Tensors outputs(const Tensors& /*batch*/) { throw NetworkError("the model has no outputs"); }
  /// Describes loss() in terms of outputs(), for callers that compute it themselves.
  virtual LossSpec outputLoss() const { return {}; }
  /// See Model::countsWeights().
  virtual bool countsWeights() const { return false; }
  /// The metrics of a batch, "loss" first.
  virtual Score score(const Tensors& batch) = 0;
};

}  // namespace psd
