#include "trainer/executor/stages/staged_run.h"

#include <algorithm>
#include <span>

#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include "common/text/text.h"

namespace psd {

Result<std::vector<size_t>> divideIntoStages(const std::vector<Layer>& layers,
                                             const std::vector<std::string>& begins) {
  std::vector<size_t> bounds{0};
  for (size_t i = 0; i < begins.size(); i++) {
    const auto after = layers.begin() + static_cast<ptrdiff_t>(bounds.back() + 1);
    const auto found =
        std::find_if(after, layers.end(), [&](const Layer& layer) { return layer.name == begins[i]; });
    if (found == layers.end()) {
      const std::span<const Layer> rest(after, layers.end());
      const std::string expected =
          rest.empty() ? "no further stage, as the previous one begins with the last layer"
                       : "one of " + joined(rest, ", ", [](const Layer& layer) { return layer.name; });
      return Error{ErrorCode::invalidArgument, "stages[" + std::to_string(i) + "]: no layer '" +
                                                   printable(begins[i], 80) + "' follows there; expected " +
                                                   expected};
    }
    bounds.push_back(static_cast<size_t>(found - layers.begin()));
  }
  bounds.push_back(layers.size());
  return bounds;
}

std::vector<size_t> divideParameters(const Network& network, const std::vector<std::string>& begins) {
  const auto trained = network.trained();
  std::vector<size_t> bounds{0};
  for (const std::string& layer : begins) {
    const auto found = std::find_if(
        trained.begin() + static_cast<ptrdiff_t>(bounds.back()), trained.end(),
        [prefix = layer + "."](const auto& parameter) { return parameter.first.starts_with(prefix); });
    bounds.push_back(static_cast<size_t>(found - trained.begin()));
  }
  bounds.push_back(trained.size());
  return bounds;
}

torch::Tensor StagedRun::runLayers(size_t stage, torch::Tensor x) const {
  for (size_t i = bounds_[stage]; i < bounds_[stage + 1]; i++) x = layers_[i].run(x);
  return x;
}

torch::Tensor StagedRun::forward(const torch::Tensor& input, size_t microBatches, bool training) {
  const std::vector<torch::Tensor> parts =
      input.tensor_split(std::clamp<int64_t>(input.size(0), 1, static_cast<int64_t>(microBatches)));
  saved_.assign(parts.size(), std::vector<SavedState>(pipeline_.stages()));
  pipeline_.run(StagePipeline::Direction::forward, parts.size(), [&](size_t stage, size_t part) {
    const torch::AutoGradMode graph(training);  // thread-local
    SavedState& saved = saved_[part][stage];
    // Each stage has its own graph; backward() passes the gradient of a stage's input to the previous stage.
    saved.input = (stage == 0 ? parts[part] : saved_[part][stage - 1].output.detach()).to(devices_[stage]);
    if (training && stage > 0) saved.input.requires_grad_(true);
    saved.output = runLayers(stage, saved.input);
  });
  std::vector<torch::Tensor> outputs;
  for (const std::vector<SavedState>& saved : saved_) outputs.push_back(saved.back().output.detach());
  if (!training) saved_.clear();
  return torch::cat(outputs);
}

void StagedRun::backward(const torch::Tensor& outputGradient, const std::vector<torch::Tensor>& parameters,
                         std::vector<torch::Tensor>& gradients) {
  const std::vector<torch::Tensor> parts = outputGradient.tensor_split(static_cast<int64_t>(saved_.size()));
  pipeline_.run(StagePipeline::Direction::backward, parts.size(), [&](size_t stage, size_t part) {
    SavedState& saved = saved_[part][stage];
    const bool last = stage + 1 == pipeline_.stages();
    const torch::Tensor& given = last ? parts[part] : saved_[part][stage + 1].inputGradient;
    std::vector<torch::Tensor> of = parameters;
    if (stage > 0) of.push_back(saved.input);
    const std::vector<torch::Tensor> computed =
        torch::autograd::grad({saved.output}, of, {given.to(saved.output.device())},
                              /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    const torch::NoGradGuard plain;
    // Gradients of this stage's parameters, which only its thread accesses.
    for (size_t i = 0; i < parameters.size(); i++) {
      if (!computed[i].defined()) continue;
      if (gradients[i].defined()) {
        gradients[i].add_(computed[i]);
      } else {
        gradients[i] = computed[i].clone();
      }
    }
    saved.output = torch::Tensor();
    if (stage > 0) saved.inputGradient = computed.back();
    if (!last) saved_[part][stage + 1] = SavedState();
  });
  saved_.clear();
}

}  // namespace psd
