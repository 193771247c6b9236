#include <memory>

#include <torch/nn/modules/linear.h>

#include "trainer/model/classifier.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

/// One hidden layer of 256 units; 203,530 parameters.
class Mlp : public Classifier {
 public:
  Mlp()
      : Classifier({1, 28, 28}, 10),
        fc1_(register_module("fc1", torch::nn::Linear(28 * 28, 256))),
        fc2_(register_module("fc2", torch::nn::Linear(256, 10))) {}

  std::vector<Layer> layers() override {
    return {{"fc1", [this](const auto& images) { return torch::relu(fc1_(images.flatten(1))); }},
            {"fc2", [this](const auto& hidden) { return torch::log_softmax(fc2_(hidden), 1); }}};
  }

 private:
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
};

}  // namespace

NetworkMaker readMlp(NamedOptions&) {
  return [] { return std::make_shared<Mlp>(); };
}

}  // namespace psd
