#pragma once

#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "common/status/status.h"
#include "trainer/model/device.h"

namespace psd {

/// The devices of a model's stages, and their faults. Thread-safe.
class StageDevices {
 public:
  explicit StageDevices(std::vector<Device> devices);

  const std::vector<Device>& all() const { return devices_; }
  const std::vector<torch::Device>& torch() const { return torch_; }
  /// Human-readable.
  std::string toString() const;
  /// Throws if a device cannot be used although it exists.
  void probeAll() const;

  /// The error of a pass that threw `exception`. After some CUDA faults a process cannot use the device any
  /// more, and any call may report them: from then on all passes fail with that fault.
  Error translateError(const std::exception& exception);
  /// The permanent fault; nullopt: none.
  std::optional<std::string> fault() const;

 private:
  /// Synchronizes with the devices and records the fault of one that fails.
  void detectFault();

  const std::vector<Device> devices_;
  std::vector<torch::Device> torch_;
  mutable std::mutex mutex_;  // guards the members below
  std::optional<std::string> fault_;
};

}  // namespace psd
