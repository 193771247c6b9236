#include "trainer/executor/stages/stage_devices.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <torch/cuda.h>
#include <torch/utils.h>

#include "common/text/text.h"
#include "trainer/model/torch_values.h"

namespace psd {
namespace {

/// Whether a message of LibTorch, CUDA, cuBLAS or cuDNN reports that a device is out of memory. The type of
/// the exception is lost in users' own modules.
bool isOutOfMemory(std::string_view message) {
  constexpr std::string_view kWords[] = {"CUDA out of memory", "CUDA error: out of memory", "_ALLOC_FAILED",
                                         "_ALLOCATION_FAILED"};
  return std::ranges::any_of(
      kWords, [&](std::string_view words) { return message.find(words) != std::string_view::npos; });
}

}  // namespace

StageDevices::StageDevices(std::vector<Device> devices) : devices_(std::move(devices)) {
  for (const Device& device : devices_) torch_.push_back(torchDevice(device));
}

std::string StageDevices::toString() const {
  return joined(devices_, ", ", [](const Device& device) { return device.toString(); });
}

void StageDevices::probeAll() const {
  for (const torch::Device& device : torch_) {
    if (!device.is_cpu()) torch::ones({1}, device).add_(1).cpu();
  }
}

Error StageDevices::translateError(const std::exception& exception) {
  const Error error = translateException(exception, toString());
  if (isOutOfMemory(error.message)) return {ErrorCode::overloaded, error.message};
  detectFault();
  const auto lost = fault();
  return lost ? Error{ErrorCode::unavailable, *lost} : error;
}

std::optional<std::string> StageDevices::fault() const {
  const std::lock_guard hold(mutex_);
  return fault_;
}

void StageDevices::detectFault() {
  for (const torch::Device& device : torch_) {
    if (device.is_cpu()) continue;
    try {
      torch::cuda::synchronize(device.index());
    } catch (const std::exception& exception) {
      const std::lock_guard hold(mutex_);
      if (!fault_) fault_ = translateException(exception, device.str()).message;
      return;
    }
  }
}

}  // namespace psd
