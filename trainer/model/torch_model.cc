#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include "common/types/model_layout.h"
#include "trainer/model/model_list.h"
#include "trainer/model/network.h"

namespace psd {
namespace {

torch::Device torchDevice(const Device& device) {
  return device.isCpu() ? torch::Device(torch::kCPU)
                        : torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(device.cuda));
}

ModelSpec describe(std::string_view name, const Network& network) {
  ModelSpec spec{std::string(name), {}};
  for (const auto& parameter : network.named_parameters()) {
    const auto sizes = parameter.value().sizes();
    spec.tensors.push_back({parameter.key(), DType::f32, {sizes.begin(), sizes.end()}});
  }
  return spec;
}

/// LibTorch's message without its backtrace, as one line.
Error translate(const std::exception& exception, const std::string& device) {
  const auto* torchError = dynamic_cast<const c10::Error*>(&exception);
  std::string message = torchError ? torchError->what_without_backtrace() : exception.what();
  message = message.substr(0, message.find('\n'));
  return {ErrorCode::internal, "LibTorch on " + device + ": " + message};
}

/// A Model whose LibTorch parameters and their .grad() are views into two flat tensors on the device.
/// Gradients are zeroed in place and never unset, so that autograd keeps adding into the views. Owned by one
/// thread.
class TorchModel : public Model {
 public:
  TorchModel(const ModelEntry& entry, const ModelOptions& options)
      : entry_(entry), device_(torchDevice(options.device)) {
    torch::manual_seed(options.seed);
    network_ = entry.makeNetwork();
    spec_ = describe(entry.name, *network_);
    allocate(ModelLayout(spec_));
    bindViews(ModelLayout(spec_));
    // From here on the generator serves dropout, which differs between ranks (golden ratio: Knuth).
    torch::manual_seed(options.seed + 0x9e3779b97f4a7c15ull * (options.rank.value + 1ull));
  }

  const ModelSpec& spec() const override { return spec_; }
  std::vector<uint64_t> inputShape() const override { return entry_.inputShape; }
  uint32_t classCount() const override { return entry_.classCount; }
  std::string device() const override { return device_.str(); }
  std::span<float> parameters() override { return flat(hostParameters_); }
  std::span<const float> gradients() const override { return flat(hostGradients_); }

  Result<double> computeGradients(const BatchView& batch) override {
    try {
      network_->train();
      uploadParameters();
      gradients_.zero_();
      const torch::Tensor loss = torch::nll_loss(network_->forward(images(batch)), labels(batch));
      loss.backward();
      if (!device_.is_cpu()) hostGradients_.copy_(gradients_);
      return loss.item<double>();
    } catch (const std::exception& exception) {
      return translate(exception, device());
    }
  }

  Result<Score> score(const BatchView& batch) override {
    try {
      const torch::NoGradGuard noGradients;
      network_->eval();
      uploadParameters();
      const torch::Tensor target = labels(batch);
      const torch::Tensor output = network_->forward(images(batch));
      const torch::Tensor lossSum = torch::nll_loss(output, target, {}, at::Reduction::Sum);
      const torch::Tensor correct = output.argmax(1).eq(target).sum();
      return Score{lossSum.item<double>(), static_cast<uint64_t>(correct.item<int64_t>()),
                   batch.labels.size()};
    } catch (const std::exception& exception) {
      return translate(exception, device());
    }
  }

 private:
  void allocate(const ModelLayout& layout) {
    const auto elements = static_cast<int64_t>(layout.totalElements());
    const auto onDevice = torch::TensorOptions().dtype(torch::kFloat32).device(device_);
    parameters_ = torch::zeros(elements, onDevice);
    gradients_ = torch::zeros(elements, onDevice);
    if (device_.is_cpu()) {
      hostParameters_ = parameters_;
      hostGradients_ = gradients_;
    } else {
      const auto pinned = torch::TensorOptions().dtype(torch::kFloat32).pinned_memory(true);
      hostParameters_ = torch::zeros(elements, pinned);
      hostGradients_ = torch::zeros(elements, pinned);
    }
  }

  /// Makes every parameter and its gradient a view, and keeps the initial values.
  void bindViews(const ModelLayout& layout) {
    size_t index = 0;
    for (auto& parameter : network_->named_parameters()) {
      const TensorPlace& place = layout.places()[index++];
      const auto begin = static_cast<int64_t>(place.begin);
      const auto count = static_cast<int64_t>(place.count);
      torch::Tensor& tensor = parameter.value();
      hostParameters_.narrow(0, begin, count).copy_(tensor.detach().view(-1));
      const auto sizes = tensor.sizes().vec();
      tensor.set_data(parameters_.narrow(0, begin, count).view(sizes));
      tensor.mutable_grad() = gradients_.narrow(0, begin, count).view(sizes);
    }
  }

  void uploadParameters() {
    if (!device_.is_cpu()) parameters_.copy_(hostParameters_, /*non_blocking=*/true);
  }

  torch::Tensor images(const BatchView& batch) const {
    std::vector<int64_t> shape{static_cast<int64_t>(batch.labels.size())};
    shape.insert(shape.end(), entry_.inputShape.begin(), entry_.inputShape.end());
    // from_blob() takes no const pointer; the tensor is only read.
    return torch::from_blob(const_cast<float*>(batch.images.data()), shape, torch::kFloat32).to(device_);
  }

  torch::Tensor labels(const BatchView& batch) const {
    return torch::from_blob(const_cast<int64_t*>(batch.labels.data()),
                            {static_cast<int64_t>(batch.labels.size())}, torch::kInt64)
        .to(device_);
  }

  static std::span<float> flat(const torch::Tensor& tensor) {
    return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())};
  }

  const ModelEntry& entry_;  ///< of modelList(), which lives as long as the program
  torch::Device device_;
  std::shared_ptr<Network> network_;
  ModelSpec spec_;
  torch::Tensor parameters_;  ///< [totalElements], on the device
  torch::Tensor gradients_;
  torch::Tensor hostParameters_;  ///< the same tensor on the CPU, else pinned host memory
  torch::Tensor hostGradients_;
};

}  // namespace

Result<std::unique_ptr<Model>> makeModel(const ModelEntry& entry, const ModelOptions& options) {
  try {
    at::set_num_threads(static_cast<int>(options.threads));
    return std::unique_ptr<Model>(std::make_unique<TorchModel>(entry, options));
  } catch (const std::exception& exception) {
    return translate(exception, options.device.toString());
  }
}

}  // namespace psd
