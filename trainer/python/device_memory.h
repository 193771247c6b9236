#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "trainer/client/client.h"
#include "trainer/client/transport/device_copier.h"
#include "trainer/python/array_arguments.h"

namespace psd::python {

/// The CUDA device whose arrays a client's calls are given. Where the daemon shares no memory of its devices
/// with the client, what the calls use is host memory that stands for them. Used on the client's thread,
/// since CUDA's current device is a thread's: Python's own threads keep theirs.
class DeviceMemory {
 public:
  /// Fails where the process has no CUDA runtime, or that has no such device.
  static Result<std::shared_ptr<DeviceMemory>> make(int device);

  CudaDevice device() const;
  /// After the client's join() or observe(), with no call under way.
  void begin(Client& client) { isClients_ = client.useDeviceMemory(); }

  /// Until what was under way on arrays that were handed over has ended.
  Status wait() { return copier_->synchronize(); }
  /// to = from, wherever each of them is, after wait().
  Status copy(std::span<float> to, std::span<const float> from) {
    return copier_->copy(to.data(), from.data(), to.size_bytes());
  }

  /// Host memory in place of so many values of the device, for whoever holds it: of unknown content. Null
  /// where the client uses the device's.
  using Stand = std::shared_ptr<std::vector<float>>;
  Stand standIn(size_t count);
  /// What an array of the device holds, in host memory until the next such call; empty where CUDA fails.
  std::span<const float> onHost(std::span<const float> array);

 private:
  explicit DeviceMemory(int device, std::unique_ptr<DeviceCopier> copier)
      : index_(device), copier_(std::move(copier)) {}

  const int index_;
  const std::unique_ptr<DeviceCopier> copier_;
  bool isClients_ = false;     // whether the client uses the device's memory itself
  std::vector<Stand> stands_;  // those that nobody else holds are free
  std::vector<float> onHost_;
};

}  // namespace psd::python
