// The stages of a model: the parameters of each, the memory that they compute with, and their failures.

#include "trainer/executor/stages/stage_devices.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "trainer/executor/stages/stage_weights.h"
#include "trainer/executor/stages/staged_run.h"
#include "trainer/model/model_list.h"
#include "trainer/model/network.h"

namespace psd::stage_devices_test {
namespace {

std::shared_ptr<Network> makeNetwork(const std::string& name) {
  const auto choice = chooseModel(name);
  PSD_REQUIRE_OK(choice);
  return choice->makeNetwork();
}

/// For each parameter whether the output of these layers for `x` depends on it; `x` becomes that output.
std::vector<bool> partsOf(const Network& network, const std::vector<Layer>& layers, size_t begin, size_t end,
                          torch::Tensor& x) {
  for (size_t i = begin; i < end; i++) x = layers[i].run(x);
  std::vector<torch::Tensor> parameters;
  for (const auto& [name, tensor] : network.trained()) parameters.push_back(tensor);
  std::vector<bool> parts;
  for (const torch::Tensor& gradient :
       torch::autograd::grad({x.sum()}, parameters, {}, /*retain_graph=*/false, /*create_graph=*/false,
                             /*allow_unused=*/true)) {
    parts.push_back(gradient.defined());
  }
  x = x.detach();
  return parts;
}

TEST_CASE("The parameters of a stage are those that its layers use") {
  const auto [name, begins] = GENERATE(table<std::string, std::vector<std::string>>({
      {"mlp", {"fc2"}},
      {"mnist_cnn", {"conv2", "fc1", "fc2"}},
      {"resnet20:width=4",
       {"block0", "block1", "block2", "block3", "block4", "block5", "block6", "block7", "block8", "fc"}},
      {"resnet20:width=4", {"block4", "fc"}},
  }));
  const auto network = makeNetwork(name);
  const std::vector<Layer> layers = network->layers();
  const auto stages = divideIntoStages(layers, begins);
  PSD_REQUIRE_OK(stages);
  const std::vector<size_t> bounds = divideParameters(*network, begins);
  REQUIRE(bounds.size() == stages->size());
  torch::Tensor x = torch::rand({2, 1, 28, 28});
  for (size_t stage = 0; stage + 1 < bounds.size(); stage++) {
    const std::vector<bool> parts = partsOf(*network, layers, (*stages)[stage], (*stages)[stage + 1], x);
    for (size_t i = 0; i < parts.size(); i++) {
      INFO(network->trained()[i].first << " in stage " << stage);
      CHECK(parts[i] == (bounds[stage] <= i && i < bounds[stage + 1]));
    }
  }
}

TEST_CASE("On the CPU a stage computes with the weights themselves") {
  const auto values = std::make_shared<std::vector<float>>(64, 1.0f);
  const Weights weights(values, values->data());
  StageWeights stage(torch::kCPU, 16, 32);
  CHECK(stage.begin() == 16);
  CHECK(stage.of(weights).get() == values->data() + 16);
  const Weights held = stage.of(weights);
  CHECK(values.use_count() == 3);
}

TEST_CASE(
    "A pass that failed for lack of device memory may be retried, other failures of a network may not") {
  StageDevices devices({Device(), Device()});
  CHECK(devices.toString() == "cpu, cpu");
  const auto codeOf = [&](const std::string& what) {
    return devices.translateError(NetworkError(what)).code;
  };
  CHECK(codeOf("outputs failed: RuntimeError: CUDA out of memory. Tried to allocate 2 GiB") ==
        ErrorCode::overloaded);
  CHECK(codeOf("CUDA error: out of memory") == ErrorCode::overloaded);
  CHECK(codeOf("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`") ==
        ErrorCode::overloaded);
  CHECK(codeOf("outputs failed: RuntimeError: not today") == ErrorCode::internal);
  CHECK(devices.translateError(std::runtime_error("no")).message == "LibTorch on cpu, cpu: no");
  CHECK_FALSE(devices.fault());
}

}  // namespace
}  // namespace psd::stage_devices_test
