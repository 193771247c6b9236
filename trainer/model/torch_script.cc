#include "trainer/model/torch_script.h"

#include <cstring>
#include <map>
#include <utility>

#include "trainer/model/load_script.h"

namespace psd {

struct TorchScriptFile::Parameters {
  std::map<std::string, at::Tensor> tensors;
};

TorchScriptFile::TorchScriptFile(std::unique_ptr<Parameters> parameters)
    : parameters_(std::move(parameters)) {}
TorchScriptFile::TorchScriptFile(TorchScriptFile&&) noexcept = default;
TorchScriptFile::~TorchScriptFile() = default;

Result<TorchScriptFile> TorchScriptFile::open(const std::string& path) {
  torch::jit::ExtraFilesMap nothingElse;
  PSD_ASSIGN_OR_RETURN(const torch::jit::Module module, loadScript(path, nothingElse));
  auto parameters = std::make_unique<Parameters>();
  for (const auto& parameter : module.named_parameters()) {
    parameters->tensors.emplace(parameter.name, parameter.value.detach());
  }
  return TorchScriptFile(std::move(parameters));
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
