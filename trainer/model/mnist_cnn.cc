#include <memory>

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "trainer/model/classifier.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

/// The network of PyTorch's examples/mnist; 1,199,882 parameters.
class MnistCnn : public Classifier {
 public:
  MnistCnn()
      : Classifier({1, 28, 28}, 10),
        conv1_(register_module("conv1", torch::nn::Conv2d(1, 32, 3))),
        conv2_(register_module("conv2", torch::nn::Conv2d(32, 64, 3))),
        fc1_(register_module("fc1", torch::nn::Linear(9216, 128))),
        fc2_(register_module("fc2", torch::nn::Linear(128, 10))) {}

  std::vector<Layer> layers() override {
    return {{"conv1", [this](const auto& images) { return torch::relu(conv1_(images)); }},  // [n, 32, 26, 26]
            {"conv2",
             [this](const auto& x) {
               const torch::Tensor pooled = torch::max_pool2d(torch::relu(conv2_(x)), 2);  // [n, 64, 12, 12]
               return torch::dropout(pooled, 0.25, is_training()).flatten(1);              // [n, 9216]
             }},
            {"fc1",
             [this](const auto& x) {
               return torch::dropout(torch::relu(fc1_(x)), 0.5, is_training());  // [n, 128]
             }},
            {"fc2", [this](const auto& x) { return torch::log_softmax(fc2_(x), 1); }}};
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::Conv2d conv2_;
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
};

}  // namespace

NetworkMaker readMnistCnn(NamedOptions&) {
  return [] { return std::make_shared<MnistCnn>(); };
}

}  // namespace psd
