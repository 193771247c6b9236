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

/// Where a model computes, by stage, and what has become of these devices. Thread-safe.
class StageDevices {
 public:
  explicit StageDevices(std::vector<Device> devices);

  const std::vector<Device>& all() const { return devices_; }
  const std::vector<torch::Device>& torch() const { return torch_; }
  /// For people.
  std::string toString() const;
  /// Throws where one cannot be used, though it is there.
  void tryAll() const;

  /// What a pass gives that threw this. CUDA has faults after which a process can do nothing more with a
  /// device, and any call may be the one that is told: after one of these all passes fail by it.
  Error errorOf(const std::exception& exception);
  /// That fault; nothing: there was none.
  std::optional<std::string> fault() const;

 private:
  /// Waits until the devices have done what they were asked for, and keeps the fault of one that cannot.
  void findFault();

  const std::vector<Device> devices_;
  std::vector<torch::Device> torch_;
  mutable std::mutex mutex_;  // guards what follows
  std::optional<std::string> fault_;
};

}  // namespace psd
