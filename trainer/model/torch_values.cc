#include "trainer/model/torch_values.h"

#include <c10/util/Exception.h>

namespace psd {

torch::ScalarType torchType(ElementType type) {
  switch (type) {
    case ElementType::f32: return torch::kFloat32;
    case ElementType::f64: return torch::kFloat64;
    case ElementType::i32: return torch::kInt32;
    case ElementType::i64: return torch::kInt64;
    case ElementType::u8: return torch::kUInt8;
  }
  return torch::kFloat32;
}

torch::Device torchDevice(const Device& device) {
  return device.isCpu() ? torch::Device(torch::kCPU)
                        : torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(device.cuda));
}

torch::ScalarType torchType(DType dtype) {
  switch (dtype) {
    case DType::bf16: return torch::kBFloat16;
    case DType::f16: return torch::kFloat16;
    default: return torch::kFloat32;
  }
}

ModelSpec describeNetwork(std::string_view name, const Network& network, DType dtype) {
  ModelSpec spec{std::string(name), {}, network.tables()};
  for (const auto& [key, tensor] : network.trained()) {
    spec.tensors.push_back({key, dtype, {tensor.sizes().begin(), tensor.sizes().end()}});
  }
  return spec;
}

Error translateException(const std::exception& exception, const std::string& device) {
  if (const auto* own = dynamic_cast<const NetworkError*>(&exception)) return {own->code(), own->what()};
  const auto* torchError = dynamic_cast<const c10::Error*>(&exception);
  std::string message = torchError ? torchError->what_without_backtrace() : exception.what();
  message = message.substr(0, message.find('\n'));
  return {ErrorCode::internal, "LibTorch on " + device + ": " + message};
}

}  // namespace psd
