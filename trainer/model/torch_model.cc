#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include "common/os/huge_pages.h"
#include "common/types/model_layout.h"
#include "trainer/model/model_list.h"
#include "trainer/model/network.h"
#include "trainer/model/row_leaves.h"
#include "trainer/model/torch_values.h"

namespace psd {
namespace {

/// Calls back when a parameter's gradient of a backward pass is complete.
class FinalHook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit FinalHook(std::function<void()> whenFinal) : whenFinal_(std::move(whenFinal)) {}
  void operator()(const torch::Tensor&) override { whenFinal_(); }

 private:
  std::function<void()> whenFinal_;
};

/// A Model whose LibTorch parameters and their .grad() are views into two flat tensors on the device.
/// Gradients are zeroed in place and never unset, so that autograd keeps adding to the views. If the model
/// computes in the arrays themselves, the views are rebound when arrays are swapped or rotated. Parameters of
/// a 16-bit dtype are views into two flat tensors of that dtype, and the arrays float32. Owned by one thread.
class TorchModel : public Model {
 public:
  TorchModel(const ModelChoice& choice, const ModelOptions& options)
      : device_(torchDevice(options.device)),
        seed_(options.seed),
        dtype_(torchType(options.dtype)),
        inPlace_(device_.is_cpu() && dtype_ == torch::kFloat32) {
    torch::manual_seed(seed_);
    network_ = choice.makeNetwork();
    inputs_ = network_->inputs();
    network_->placeOn(device_);
    for (const auto& [name, tensor] : network_->trained()) tensors_.push_back(tensor);
    checkDtype(options.dtype);
    spec_ = describeNetwork(choice.name, *network_, options.dtype);
    if (const Status valid = validateModel(spec_); !valid.ok()) throw NetworkError(valid.message());
    layout_ = ModelLayout(spec_);
    rows_.emplace(spec_.tables, device_);
    allocate();
    copyInitialValues();
    bindViews();
    setHooks();
    TorchModel::assignRank(options.rank);
  }

  const ModelSpec& spec() const override { return spec_; }
  std::vector<ColumnSpec> inputs() const override { return inputs_; }
  std::string device() const override { return device_.str(); }
  int cudaDevice() const override { return device_.is_cpu() ? -1 : device_.index(); }
  std::span<float> parameters() override { return flat(parameterArrays_.front()); }
  std::span<float> gradients() override { return flat(gradientArrays_.front()); }

  Status moveArraysToDevice() override {
    if (device_.is_cpu()) return Model::moveArraysToDevice();
    try {
      uploadParameters();
      // Synchronous, since code that fills an array does not wait for LibTorch's stream.
      gradients_.copy_(gradientArrays_.front());
      torch::cuda::synchronize(device_.index());
      onDevice_ = true;
      if (dtype_ == torch::kFloat32) {
        inPlace_ = true;
        parameterArrays_ = {parameters_};
        gradientArrays_ = {gradients_};
      } else {
        parameterArrays_ = {parameterArrays_.front().to(device_)};
        gradientArrays_ = {newArray()};
      }
      torch::cuda::synchronize(device_.index());
      return {};
    } catch (const std::exception& exception) {
      return translateException(exception, device());
    }
  }

  Result<std::span<const float>> onHost(std::span<const float> array) override {
    if (!onDevice_) return array;
    try {
      // from_blob() takes no const pointer; the tensor is only read.
      hostCopy_ = torch::from_blob(const_cast<float*>(array.data()), {static_cast<int64_t>(array.size())},
                                   torch::TensorOptions(torch::kFloat32).device(device_))
                      .cpu();
      return std::span<const float>(flat(hostCopy_));
    } catch (const std::exception& exception) {
      return translateException(exception, device());
    }
  }

  void assignRank(Rank rank) override {
    // From here on only dropout and lookups use the generator (golden ratio: Knuth).
    torch::manual_seed(seed_ + 0x9e3779b97f4a7c15ull * (rank.value + 1ull));
  }

  Status reserve(uint32_t gradientArrays, bool spare) override {
    try {
      while (gradientArrays_.size() < gradientArrays) gradientArrays_.push_back(newArray());
      if (spare && parameterArrays_.size() == 1) parameterArrays_.push_back(newArray());
      if (!device_.is_cpu()) torch::cuda::synchronize(device_.index());  // so that the arrays are zero
      return {};
    } catch (const std::exception& exception) {
      return translateException(exception, device());
    }
  }

  std::span<float> spareParameters() override {
    return parameterArrays_.size() == 1 ? std::span<float>() : flat(parameterArrays_.back());
  }

  void swapParameters() override {
    std::swap(parameterArrays_.front(), parameterArrays_.back());
    if (inPlace_) bindViews();
  }

  void rotateGradients() override {
    if (gradientArrays_.size() == 1) return;
    std::rotate(gradientArrays_.begin(), gradientArrays_.begin() + 1, gradientArrays_.end());
    if (inPlace_) bindViews();
  }

  std::vector<RowLookup> lookUp(const Batch& batch, Purpose purpose) override {
    return network_->lookUp(batch, purpose);
  }

  bool countsWeights() const override { return network_->countsWeights(); }

  Result<double> computeGradients(const Batch& batch, const GradientsFinal& whenFinal) override {
    try {
      network_->train();
      uploadParameters();
      if (network_->computesGradients()) return takeStep(batch, whenFinal);
      gradients_.zero_();
      final_.assign(tensors_.size(), false);
      const torch::Tensor loss = network_->loss(tensorsOf(batch, Purpose::training));
      // On the CPU backward() runs its hooks on this thread, and the gradients are in their array. On a CUDA
      // device they are final when the device has finished, for which item() waits.
      whenFinal_ = device_.is_cpu() && inPlace_ ? whenFinal : GradientsFinal();
      loss.backward();
      if (!inPlace_) gradientArrays_.front().copy_(gradients_);
      rows_->addGradients(batch.rows());
      const auto value = loss.item<double>();
      whenFinal_ = whenFinal;
      for (size_t i = 0; i < tensors_.size(); ++i) reportFinal(i);
      return value;
    } catch (const std::exception& exception) {
      return translateException(exception, device());
    }
  }

  Result<Score> score(const Batch& batch) override {
    try {
      const torch::NoGradGuard noGradients;
      network_->eval();
      uploadParameters();
      return network_->score(tensorsOf(batch, Purpose::scoring));
    } catch (const std::exception& exception) {
      return translateException(exception, device());
    }
  }

 private:
  /// A step of a network that computes its own gradients, on the CPU: each gradient is copied once, into the
  /// flat array.
  double takeStep(const Batch& batch, const GradientsFinal& whenFinal) {
    const torch::NoGradGuard noGraph;
    const GradientStep step = network_->step(tensorsOf(batch, Purpose::training));
    rows_->addLookupGradients(batch.rows(), step.rowGradients);
    final_.assign(tensors_.size(), false);
    whenFinal_ = whenFinal;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      part(gradients_, i).copy_(step.gradients[i]);
      padding(gradients_, i).zero_();
      reportFinal(i);
    }
    return step.loss;
  }

  /// Throws if the network cannot have parameters of this dtype.
  void checkDtype(DType dtype) const {
    if (dtype == DType::f32) return;
    const char* const why = !network_->tables().empty()     ? "has embedding tables, whose rows are float32"
                            : network_->computesGradients() ? "computes its own gradients, in float32"
                                                            : nullptr;
    if (why) throw NetworkError("it " + std::string(why) + ": omit --dtype", ErrorCode::invalidArgument);
  }

  torch::Tensor flatZeros(const torch::TensorOptions& options,
                          torch::ScalarType dtype = torch::kFloat32) const {
    const auto count = static_cast<int64_t>(layout_.totalElements());
    torch::Tensor flat = torch::empty(count, options.dtype(dtype));
    if (flat.is_cpu()) preferHugePages(flat.data_ptr(), flat.nbytes());
    return flat.zero_();
  }

  /// An array for transfers.
  torch::Tensor newArray() const {
    return inPlace_ || onDevice_ || device_.is_cpu() ? flatZeros(device_)
                                                     : flatZeros(torch::TensorOptions().pinned_memory(true));
  }

  void allocate() {
    // Before any pinned memory: LibTorch allocates that with an open context, or else opens one on the first
    // device, which may not be this one.
    if (!inPlace_) {
      parameters_ = flatZeros(device_, dtype_);
      gradients_ = torch::zeros_like(parameters_);
    }
    parameterArrays_.push_back(newArray());
    gradientArrays_.push_back(newArray());
  }

  /// The view of a parameter in a flat tensor.
  torch::Tensor part(const torch::Tensor& flat, size_t index) const {
    const TensorPlace& place = layout_.places()[index];
    return flat.narrow(0, static_cast<int64_t>(place.begin), static_cast<int64_t>(place.count))
        .view(tensors_[index].sizes());
  }

  /// The padding after a parameter in a flat tensor.
  torch::Tensor padding(const torch::Tensor& flat, size_t index) const {
    const uint64_t begin = layout_.places()[index].begin + layout_.places()[index].count;
    return flat.narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(endOf(index) - begin));
  }

  /// Where the next parameter begins.
  uint64_t endOf(size_t index) const {
    const auto& places = layout_.places();
    return index + 1 < places.size() ? places[index + 1].begin : layout_.totalElements();
  }

  void copyInitialValues() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      part(parameterArrays_.front(), i).copy_(tensors_[i].detach().to(dtype_));
    }
  }

  /// Makes every parameter and its gradient a view of the current arrays.
  void bindViews() {
    if (inPlace_) {
      parameters_ = parameterArrays_.front();
      gradients_ = gradientArrays_.front();
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].mutable_grad().reset();
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

  /// Reports a parameter's gradient and padding as final, once per pass.
  void reportFinal(size_t index) {
    if (!whenFinal_ || final_[index]) return;
    final_[index] = true;
    const uint64_t begin = layout_.places()[index].begin;
    whenFinal_(begin, endOf(index) - begin);
  }

  void uploadParameters() {
    if (!inPlace_) parameters_.copy_(parameterArrays_.front(), /*non_blocking=*/true);
  }

  /// The batch's tensors that the network takes, on the device.
  Tensors tensorsOf(const Batch& batch, Purpose purpose) {
    Tensors tensors;
    for (const BatchTensor& each : batch.tensors()) {
      const auto isInput = [&](const ColumnSpec& input) { return input.name == each.column.name; };
      if (std::none_of(inputs_.begin(), inputs_.end(), isInput)) continue;
      std::vector<int64_t> shape{static_cast<int64_t>(batch.size())};
      shape.insert(shape.end(), each.column.shape.begin(), each.column.shape.end());
      // from_blob() takes no const pointer; the tensor is only read.
      torch::Tensor values =
          torch::from_blob(const_cast<std::byte*>(each.bytes.data()), shape, torchType(each.column.type))
              .to(device_);
      if (values.is_floating_point() && dtype_ != torch::kFloat32) values = values.to(dtype_);
      tensors.emplace(each.column.name, std::move(values));
    }
    rows_->addTo(tensors, batch.rows(), purpose);
    return tensors;
  }

  static std::span<float> flat(const torch::Tensor& tensor) {
    return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())};
  }

  torch::Device device_;
  const uint64_t seed_;
  const torch::ScalarType dtype_;  ///< of tensors_, parameters_ and gradients_
  std::shared_ptr<Network> network_;
  std::vector<ColumnSpec> inputs_;  ///< of network_
  ModelSpec spec_;
  ModelLayout layout_{ModelSpec{}};
  std::vector<torch::Tensor> tensors_;  ///< of network_, in the order of spec_
  std::optional<RowLeaves> rows_;
  torch::Tensor parameters_;  ///< [totalElements], on the device
  torch::Tensor gradients_;
  /// In order of use; the first is parameters(). In pinned host memory or, if inPlace_, the first is the
  /// tensor above.
  std::vector<torch::Tensor> parameterArrays_;
  std::vector<torch::Tensor> gradientArrays_;
  bool inPlace_;              ///< the model computes in these arrays
  bool onDevice_ = false;     ///< they are in the CUDA device's memory
  torch::Tensor hostCopy_;    ///< the last copy made by onHost()
  GradientsFinal whenFinal_;  ///< of the current pass
  std::vector<bool> final_;   ///< per parameter: reported in the current pass
};

}  // namespace

Result<std::unique_ptr<Model>> makeModel(const ModelChoice& choice, const ModelOptions& options) {
  try {
    at::set_num_threads(static_cast<int>(options.threads));
    return std::unique_ptr<Model>(std::make_unique<TorchModel>(choice, options));
  } catch (const NetworkError& error) {
    return Error{ErrorCode::invalidArgument, error.what()};
  } catch (const std::exception& exception) {
    return translateException(exception, options.device.toString());
  }
}

}  // namespace psd
