#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "common/status/status.h"
#include "trainer/model/network.h"
#include "trainer/model/stage_pipeline.h"

namespace psd {

/// How a network's layers are divided into stages: with which each begins, and the number of layers at the
/// end. The error names the place in `begins`, which has the names of layers with which the second stage and
/// those after it begin.
Result<std::vector<size_t>> divideIntoStages(const std::vector<Layer>& layers,
                                             const std::vector<std::string>& begins);

/// The stages' parts of network.trained(): the index of each stage's first parameter, and at the end the
/// number of parameters. `begins`: as divideIntoStages() takes it.
std::vector<size_t> divideParameters(const Network& network, const std::vector<std::string>& begins);

/// One pass of a batch through the stages of a network, in micro-batches: a graph for each of these at each
/// stage. Its gradients are those of the whole batch, to the order of summation. Used by one thread at a
/// time; the network is bound to the pass's weights all the while.
class StagedRun {
 public:
  /// `bounds`: as divideIntoStages() gives them. `devices`: where the parameters of each stage are. All
  /// outlive it.
  StagedRun(StagePipeline& pipeline, const std::vector<size_t>& bounds,
            const std::vector<torch::Device>& devices, std::vector<Layer> layers)
      : pipeline_(pipeline), bounds_(bounds), devices_(devices), layers_(std::move(layers)) {}

  /// The output of the last layer, on the last stage's device.
  torch::Tensor forward(const torch::Tensor& input, size_t microBatches, bool training);
  /// After forward() in training, once: adds the gradients of the parameters to these, which are as long as
  /// those; a tensor of them may be undefined before. `outputGradient`: on the device of the output.
  void backward(const torch::Tensor& outputGradient, const std::vector<torch::Tensor>& parameters,
                std::vector<torch::Tensor>& gradients);

 private:
  /// What a micro-batch leaves at a stage for its way back.
  struct Left {
    torch::Tensor input, output;
    torch::Tensor inputGradient;  ///< once its backward pass was there; none at the first stage
  };

  torch::Tensor runLayers(size_t stage, torch::Tensor x) const;

  StagePipeline& pipeline_;
  const std::vector<size_t>& bounds_;
  const std::vector<torch::Device>& devices_;
  const std::vector<Layer> layers_;
  std::vector<std::vector<Left>> left_;  ///< by micro-batch, then by stage
};

}  // namespace psd
