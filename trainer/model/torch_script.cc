#include "trainer/model/torch_script.h"

#include <cstring>
#include <map>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

namespace psd {

struct TorchScriptFile::Parameters {
  std::map<std::string, at::Tensor> tensors;
};

TorchScriptFile::TorchScriptFile(std::unique_ptr<Parameters> parameters)
    : parameters_(std::move(parameters)) {}
TorchScriptFile::TorchScriptFile(TorchScriptFile&&) noexcept = default;
TorchScriptFile::~TorchScriptFile() = default;

Result<TorchScriptFile> TorchScriptFile::open(const std::string& path) {
  try {
    const torch::jit::Module module = torch::jit::load(path, c10::Device(c10::kCPU));
    auto parameters = std::make_unique<Parameters>();
    for (const auto& parameter : module.named_parameters()) {
      parameters->tensors.emplace(parameter.name, parameter.value.detach());
    }
    return TorchScriptFile(std::move(parameters));
  } catch (const std::exception& exception) {
    const auto* torchError = dynamic_cast<const c10::Error*>(&exception);
    const std::string why = torchError ? torchError->what_without_backtrace() : exception.what();
    return Error{ErrorCode::io, "'" + path + "' is no TorchScript file, which torch.jit.save writes: " +
                                    why.substr(0, why.find('\n'))};
  }
}

std::optional<TensorSpec> TorchScriptFile::find(const std::string& name) const {
  const auto found = parameters_->tensors.find(name);
  if (found == parameters_->tensors.end()) return {};
  const auto sizes = found->second.sizes();
  return TensorSpec{name, DType::f32, {sizes.begin(), sizes.end()}};
}

Status TorchScriptFile::read(const std::string& name, std::span<float> into) const {
  const at::Tensor& tensor = parameters_->tensors.at(name);
  if (!tensor.is_floating_point()) return {ErrorCode::modelMismatch, "holds no floating-point numbers"};
  const at::Tensor values = tensor.to(at::kFloat).contiguous();
  std::memcpy(into.data(), values.const_data_ptr<float>(), into.size_bytes());
  return {};
}

}  // namespace psd
