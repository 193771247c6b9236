#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <torch/nn/functional/padding.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "trainer/model/classifier.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

constexpr int64_t kGroupsMax = 8;
constexpr int kStages = 3, kBlocksOfStage = 3;

torch::nn::Conv2d convolution(int64_t from, int64_t to, int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false));
}

torch::nn::GroupNorm groupNorm(int64_t channels) {
  return torch::nn::GroupNorm(torch::nn::GroupNormOptions(std::gcd(kGroupsMax, channels), channels));
}

/// Two convolutions with a residual connection; with stride 2 the shortcut takes every other pixel and pads
/// channels with zeros.
class ResidualBlock : public torch::nn::Module {
 public:
  ResidualBlock(int64_t from, int64_t to)
      : stride_(from == to ? 1 : 2),
        more_(to - from),
        conv1_(register_module("conv1", convolution(from, to, stride_))),
        norm1_(register_module("norm1", groupNorm(to))),
        conv2_(register_module("conv2", convolution(to, to, 1))),
        norm2_(register_module("norm2", groupNorm(to))) {}

  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor x = norm2_(conv2_(torch::relu(norm1_(conv1_(input)))));
    if (more_ == 0) return torch::relu(x + input);
    const torch::Tensor sparse = input.slice(2, 0, {}, stride_).slice(3, 0, {}, stride_);
    return torch::relu(x + torch::constant_pad_nd(sparse, {0, 0, 0, 0, 0, more_}));
  }

 private:
  int64_t stride_, more_;
  torch::nn::Conv2d conv1_;
  torch::nn::GroupNorm norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::GroupNorm norm2_;
};

/// The 20-layer network of He, Zhang, Ren, Sun (2016) for CIFAR-10, adapted to one channel, with GroupNorm
/// (Wu, He 2018) in place of BatchNorm, whose running statistics trainers would not share. 269,434 parameters
/// with the default width.
class Resnet20 : public Classifier {
 public:
  explicit Resnet20(int64_t width)
      : Classifier({1, 28, 28}, 10),
        conv_(register_module("conv", convolution(1, width, 1))),
        norm_(register_module("norm", groupNorm(width))) {
    int64_t channels = width;
    for (int i = 0; i < kStages * kBlocksOfStage; ++i) {
      const int64_t next = width << (i / kBlocksOfStage);
      blocks_.push_back(
          register_module("block" + std::to_string(i), std::make_shared<ResidualBlock>(channels, next)));
      channels = next;
    }
    fc_ = register_module("fc", torch::nn::Linear(channels, 10));
  }

  std::vector<Layer> layers() override {
    std::vector<Layer> layers{{"conv", [this](const auto& x) { return torch::relu(norm_(conv_(x))); }}};
    for (size_t i = 0; i < blocks_.size(); ++i) {
      layers.push_back(
          {"block" + std::to_string(i), [this, i](const auto& x) { return blocks_[i]->forward(x); }});
    }
    layers.push_back({"fc", [this](const auto& x) { return torch::log_softmax(fc_(x.mean({2, 3})), 1); }});
    return layers;
  }

 private:
  torch::nn::Conv2d conv_;
  torch::nn::GroupNorm norm_;
  std::vector<std::shared_ptr<ResidualBlock>> blocks_;
  torch::nn::Linear fc_{nullptr};
};

}  // namespace

NetworkMaker readResnet20(NamedOptions& given) {
  const auto width = static_cast<int64_t>(given.count("width", 16, 1, 1024));
  return [width] { return std::make_shared<Resnet20>(width); };
}

}  // namespace psd
