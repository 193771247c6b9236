#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "trainer/model/device.h"
#include "trainer/model/network.h"
#include "trainer/task/batch.h"

// Conversions between LibTorch's types and psd's.

namespace psd {

torch::ScalarType torchType(ElementType type);
/// That of a model's tensors.
torch::ScalarType torchType(DType dtype);

torch::Device torchDevice(const Device& device);

/// The spec of a network: its trained tensors and tables.
ModelSpec describeNetwork(std::string_view name, const Network& network, DType dtype = DType::f32);

/// A network's own message, or LibTorch's without its backtrace, as one line.
Error translateException(const std::exception& exception, const std::string& device);

}  // namespace psd
