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

/// The tensors of a batch by name, on the model's device: of each column [samples, …column.shape]; of each
/// lookup its rows [ids, dim], in the order of its ids, and under the name and ".ids" these, i64 [ids].
using Tensors = std::map<std::string, torch::Tensor, std::less<>>;

/// What is wrong with a network that somebody else wrote, or with what it gave: one line for people. Thrown
/// within this folder alone, as LibTorch throws its own complaints.
class NetworkError : public std::runtime_error {
 public:
  explicit NetworkError(const std::string& what, ErrorCode code = ErrorCode::internal)
      : std::runtime_error(what), code_(code) {}
  /// ErrorCode::nonFinite where the loss was: training has diverged.
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// Thrown if a module from a file has written to a parameter.
class ParameterWritten : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

/// What a training step of a network gives that computes gradients by itself.
struct GradientStep {
  double loss = 0;
  std::vector<torch::Tensor> gradients;  ///< of trained(), in its order
  Tensors rowGradients;  ///< of what each lookup gathered, [ids, dim] or with more dimensions, by its name
};

/// A part of a network's way from its input to its output. `run` lives as long as the network.
struct Layer {
  std::string name;
  std::function<torch::Tensor(const torch::Tensor&)> run;
};

/// A model as LibTorch sees it. What it trains, in order, becomes the ModelSpec. Whoever calls it sees
/// to train(), eval() and gradients. Includes LibTorch: only the files of this folder that build networks
/// include it.
class Network : public torch::nn::Module {
 public:
  /// The leaf tensors of f32 that are trained, by name, in an order that stays; its named parameters, if it
  /// says nothing else.
  virtual std::vector<std::pair<std::string, torch::Tensor>> trained() const {
    std::vector<std::pair<std::string, torch::Tensor>> tensors;
    for (const auto& parameter : named_parameters()) tensors.emplace_back(parameter.key(), parameter.value());
    return tensors;
  }
  /// Moves what it computes with beside these and a batch. Called once, and not for a network in stages.
  virtual void placeOn(torch::Device) {}
  /// The columns that it takes of a batch: `batch` below has these.
  virtual std::vector<ColumnSpec> inputs() const = 0;
  /// Its embedding tables; in the ModelSpec after the parameters.
  virtual std::vector<TableSpec> tables() const { return {}; }
  /// See Model::lookUp(): `batch` below has these rows. What is drawn by chance is drawn with LibTorch's
  /// generator.
  virtual std::vector<RowLookup> lookUp(const Batch&, Purpose) { return {}; }
  /// The mean loss over a batch, a scalar that gradients flow back from.
  virtual torch::Tensor loss(const Tensors&) {
    throw NetworkError("the model gives no loss without gradients");
  }
  /// Whether step() is to be called in place of loss(), as gradients do not come by autograd: on the CPU
  /// alone.
  virtual bool givesGradients() const { return false; }
  virtual GradientStep step(const Tensors&) { throw NetworkError("the model gives no gradients"); }
  /// The columns that outputs() takes: those of inputs() that the loss alone takes are not among them. Empty:
  /// the network gives no outputs.
  virtual std::vector<ColumnSpec> outputInputs() const { return {}; }
  /// What lies between the one column of outputInputs() and the one of outputs(), in order, where the network
  /// can be cut there: each takes what the one before gives, sample by sample, and no parameter is of two.
  /// trained() has a layer's parameters after those of the layers before it, and the first one's name begins
  /// with the layer's and a dot. Empty: it cannot be cut.
  virtual std::vector<Layer> layers() { return {}; }
  /// Whether outputs() is a module's code from a file, which may write to parameters.
  virtual bool mayWrite() const { return false; }
  /// What a loss can be computed from elsewhere, by name, each [samples, …]; gradients flow back from these.
  /// `batch` has the columns of outputInputs(), and the rows of what lookUp() takes for these.
  virtual Tensors outputs(const Tensors& /*batch*/) { throw NetworkError("the model gives no outputs"); }
  /// The loss that loss() is, as somebody else computes it of outputs().
  virtual LossSpec outputLoss() const { return {}; }
  /// The sums of a batch, "loss" first.
  virtual Score score(const Tensors& batch) = 0;
};

}  // namespace psd
