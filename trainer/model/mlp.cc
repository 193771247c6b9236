#include <memory>

#include <torch/nn/modules/linear.h>

#include "trainer/model/network.h"

namespace psd {
namespace {

/// One hidden layer of 256; 203,530 parameters.
class Mlp : public Network {
 public:
  Mlp()
      : fc1_(register_module("fc1", torch::nn::Linear(28 * 28, 256))),
        fc2_(register_module("fc2", torch::nn::Linear(256, 10))) {}

  torch::Tensor forward(const torch::Tensor& images) override {
    const torch::Tensor hidden = torch::relu(fc1_(images.flatten(1)));
    return torch::log_softmax(fc2_(hidden), 1);
  }

 private:
  torch::nn::Linear fc1_;
  torch::nn::Linear fc2_;
};

}  // namespace

std::shared_ptr<Network> makeMlp() { return std::make_shared<Mlp>(); }

}  // namespace psd
