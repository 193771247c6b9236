#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "common/status/status.h"
#include "trainer/executor/stages/stage_pipeline.h"
#include "trainer/model/network.h"

namespace psd {

/// Divides a network's layers into stages: returns the index of each stage's first layer, then the number of
/// layers. `begins`: names of the first layers of the second and later stages. The error gives the index in
/// `begins`.
Result<std::vector<size_t>> divideIntoStages(const std::vector<Layer>& layers,
                                             const std::vector<std::string>& begins);

/// Divides network.trained() among the stages: returns the index of each stage's first parameter, then the
/// number of parameters. `begins`: as in divideIntoStages().
std::vector<size_t> divideParameters(const Network& network, const std::vector<std::string>& begins);

/// A pass of a batch through the stages of a network in micro-batches, with a graph per micro-batch and
/// stage. Its gradients equal those of the whole batch up to the order of summation. Used by one thread at a
/// time; the network stays bound to the pass's weights.
class StagedRun {
 public:
  /// `bounds`: of divideIntoStages(). `devices`: of each stage's parameters. All outlive it.
  StagedRun(StagePipeline& pipeline, const std::vector<size_t>& bounds,
            const std::vector<torch::Device>& devices, std::vector<Layer> layers)
      : pipeline_(pipeline), bounds_(bounds), devices_(devices), layers_(std::move(layers)) {}

  /// The output of the last layer, on the last stage's device.
  torch::Tensor forward(const torch::Tensor& input, size_t microBatches, bool training);
  /// After forward() in training, once: adds the gradients of `parameters` to `gradients`, which has the same
  /// size and may hold undefined tensors. `outputGradient`: on the device of the output.
  void backward(const torch::Tensor& outputGradient, const std::vector<torch::Tensor>& parameters,
                std::vector<torch::Tensor>& gradients);

 private:
  /// State of a micro-batch at a stage for the backward pass.
  struct SavedState {
    torch::Tensor input, output;
    torch::Tensor inputGradient;  ///< set by the stage's backward pass; unused at the first stage
  };

  torch::Tensor runLayers(size_t stage, torch::Tensor x) const;

  StagePipeline& pipeline_;
  const std::vector<size_t>& bounds_;
  const std::vector<torch::Device>& devices_;
  const std::vector<Layer> layers_;
  std::vector<std::vector<SavedState>> saved_;  ///< by micro-batch, then by stage
};

}  // namespace psd
