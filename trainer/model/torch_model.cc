#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
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

/// Calls back once LibTorch has added the last of a backward pass to a parameter's gradient.
class FinalHook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit FinalHook(std::function<void()> whenFinal) : whenFinal_(std::move(whenFinal)) {}
  void operator()(const torch::Tensor&) override { whenFinal_(); }

 private:
  std::function<void()> whenFinal_;
};

/// A Model whose LibTorch parameters and their .grad() are views into two flat tensors on the device.
/// Gradients are zeroed in place and never unset, so that autograd keeps adding into the views. On the CPU
/// the views move along when arrays take turns. Owned by one thread.
class TorchModel : public Model {
 public:
  TorchModel(const ModelEntry& entry, const ModelOptions& options)
      : entry_(entry), device_(torchDevice(options.device)), seed_(options.seed) {
    torch::manual_seed(seed_);
    network_ = entry.makeNetwork();
    tensors_ = network_->parameters();
    spec_ = describe(entry.name, *network_);
    layout_ = ModelLayout(spec_);
    allocate();
    keepInitialValues();
    bindViews();
    setHooks();
    TorchModel::becomeRank(options.rank);
  }

  const ModelSpec& spec() const override { return spec_; }
  std::vector<uint64_t> inputShape() const override { return entry_.inputShape; }
  uint32_t classCount() const override { return entry_.classCount; }
  std::string device() const override { return device_.str(); }
  std::span<float> parameters() override { return flat(hostParameters_.front()); }
  std::span<float> gradients() override { return flat(hostGradients_.front()); }

  void becomeRank(Rank rank) override {
    // The generator serves nothing but dropout any more (golden ratio: Knuth).
    torch::manual_seed(seed_ + 0x9e3779b97f4a7c15ull * (rank.value + 1ull));
  }

  Status reserve(uint32_t gradientArrays, bool spare) override {
    try {
      while (hostGradients_.size() < gradientArrays) hostGradients_.push_back(hostArray());
      if (spare && hostParameters_.size() == 1) hostParameters_.push_back(hostArray());
      return {};
    } catch (const std::exception& exception) {
      return translate(exception, device());
    }
  }

  std::span<float> spareParameters() override {
    return hostParameters_.size() == 1 ? std::span<float>() : flat(hostParameters_.back());
  }

  void swapParameters() override {
    std::swap(hostParameters_.front(), hostParameters_.back());
    if (device_.is_cpu()) bindViews();
  }

  void rotateGradients() override {
    if (hostGradients_.size() == 1) return;
    std::rotate(hostGradients_.begin(), hostGradients_.begin() + 1, hostGradients_.end());
    if (device_.is_cpu()) bindViews();
  }

  Result<double> computeGradients(const BatchView& batch, const GradientsFinal& whenFinal) override {
    try {
      network_->train();
      uploadParameters();
      gradients_.zero_();
      final_.assign(tensors_.size(), false);
      const torch::Tensor loss = torch::nll_loss(network_->forward(images(batch)), labels(batch));
      // On the CPU backward() runs its hooks on this thread; a CUDA device's gradients are final here when
      // copied.
      whenFinal_ = device_.is_cpu() ? whenFinal : GradientsFinal();
      loss.backward();
      if (!device_.is_cpu()) hostGradients_.front().copy_(gradients_);
      whenFinal_ = whenFinal;
      for (size_t i = 0; i < tensors_.size(); ++i) reportFinal(i);
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
  torch::Tensor flatZeros(const torch::TensorOptions& options) const {
    return torch::zeros(static_cast<int64_t>(layout_.totalElements()), options.dtype(torch::kFloat32));
  }

  torch::Tensor hostArray() const {
    return flatZeros(torch::TensorOptions().pinned_memory(!device_.is_cpu()));
  }

  void allocate() {
    // Before any pinned memory: LibTorch takes that with a context that is open, or opens one on the first
    // device, whichever this one is.
    if (!device_.is_cpu()) {
      parameters_ = flatZeros(device_);
      gradients_ = torch::zeros_like(parameters_);
    }
    hostParameters_.push_back(hostArray());
    hostGradients_.push_back(hostArray());
  }

  /// The part of a flat tensor that belongs to a parameter.
  torch::Tensor part(const torch::Tensor& flat, size_t index) const {
    const TensorPlace& place = layout_.places()[index];
    return flat.narrow(0, static_cast<int64_t>(place.begin), static_cast<int64_t>(place.count))
        .view(tensors_[index].sizes());
  }

  void keepInitialValues() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      part(hostParameters_.front(), i).copy_(tensors_[i].detach());
    }
  }

  /// Makes every parameter and its gradient a view of the arrays whose turn it is.
  void bindViews() {
    if (device_.is_cpu()) {
      parameters_ = hostParameters_.front();
      gradients_ = hostGradients_.front();
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].set_data(part(parameters_, i));
      tensors_[i].mutable_grad() = part(gradients_, i);
    }
  }

  void setHooks() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(
          tensors_[i], std::make_unique<FinalHook>([this, i] { reportFinal(i); }));
    }
  }

  /// Reports a parameter's gradient, up to where the next one begins, if that was not done in this pass.
  void reportFinal(size_t index) {
    if (!whenFinal_ || final_[index]) return;
    final_[index] = true;
    const auto& places = layout_.places();
    const uint64_t end = index + 1 < places.size() ? places[index + 1].begin : layout_.totalElements();
    whenFinal_(places[index].begin, end - places[index].begin);
  }

  void uploadParameters() {
    if (!device_.is_cpu()) parameters_.copy_(hostParameters_.front(), /*non_blocking=*/true);
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
  const uint64_t seed_;
  std::shared_ptr<Network> network_;
  ModelSpec spec_;
  ModelLayout layout_{ModelSpec{}};
  std::vector<torch::Tensor> tensors_;  ///< of network_, in the order of spec_
  torch::Tensor parameters_;            ///< [totalElements], on the device
  torch::Tensor gradients_;
  std::vector<torch::Tensor>
      hostParameters_;  ///< the first is parameters(); pinned for a CUDA device, else the
  std::vector<torch::Tensor> hostGradients_;  ///< first is the tensor above. In order of their turns
  GradientsFinal whenFinal_;                  ///< of the pass under way
  std::vector<bool> final_;                   ///< per parameter: reported in this pass
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
