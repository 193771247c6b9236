#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "trainer/client/client.h"
#include "trainer/client/transport/device_copier.h"
#include "trainer/python/array_arguments.h"

namespace psd::python {

/// The CUDA device whose arrays a client's calls are given. Where the daemon shares no memory of its devices
/// with the client, what the calls use is a copy in host memory. Used on the client's thread, since CUDA's
/// current device is a thread's: Python's own threads keep theirs.
class DeviceMemory {
 public:
  using Interrupted = std::shared_ptr<const std::atomic<bool>>;

  /// Fails where the process has no CUDA runtime, or that has no such device. `interrupted`: ends every wait.
  static Result<std::shared_ptr<DeviceMemory>> make(int device, Interrupted interrupted);

  CudaDevice device() const;
  /// Before the client's join() or observe(): of how many values an array of the model is.
  void expect(size_t elements) { elements_ = elements; }
  /// After it, with no call under way.
  void begin(Client& client) { usesDevice_ = client.useDeviceMemory(); }

  /// Until what was under way on arrays that were handed over has ended.
  Status wait();
  /// wait(), then to = from, wherever each of them is.
  Status copy(std::span<float> to, std::span<const float> from);

  /// Host memory for the values of an array of the device, for whoever holds it: of unknown content. Null
  /// where the client uses the array itself, and for one that the client refuses.
  using HostCopy = std::shared_ptr<std::vector<float>>;
  HostCopy hostCopyFor(std::span<const float> array);

  /// What an array of the device holds, for a client that brings it to a daemon: in host memory until
  /// brought(). Nothing where CUDA fails, which brought() tells.
  std::span<const float> toBring(std::span<const float> array);
  /// After each call that may bring values.
  Status brought();

 private:
  DeviceMemory(int device, std::unique_ptr<DeviceCopier> copier, Interrupted interrupted)
      : index_(device), copier_(std::move(copier)), interrupted_(std::move(interrupted)) {}
  bool fits(std::span<const float> array) const;

  const int index_;
  const std::unique_ptr<DeviceCopier> copier_;
  const Interrupted interrupted_;
  size_t elements_ = 0;
  bool usesDevice_ = false;           // whether the client uses the device's memory itself
  std::vector<HostCopy> hostCopies_;  // those that nobody else holds are free
  std::vector<float> brought_;
  Status bringing_;
};

}  // namespace psd::python
