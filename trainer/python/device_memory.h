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

/// The CUDA device on which the arrays of a client's calls are. If the daemon does not share memory of its
/// devices with the client, calls use copies in host memory. Used on the client's thread, since CUDA's
/// current device is per thread, so that Python's own threads keep theirs.
class DeviceMemory {
 public:
  using Interrupted = std::shared_ptr<const std::atomic<bool>>;

  /// Fails if the process has no CUDA runtime or no such device. `interrupted`: ends every wait when it is
  /// set.
  static Result<std::shared_ptr<DeviceMemory>> make(int device, Interrupted interrupted);

  CudaDevice device() const;
  /// Sets the number of elements of the model's arrays. Called before the client's join() or observe().
  void expect(size_t elements) { elements_ = elements; }
  /// Called after join() or observe(), with no call in progress.
  void begin(Client& client) { usesDevice_ = client.useDeviceMemory(); }

  /// Waits for pending work on arrays that were passed to exportDlpack().
  Status wait();
  /// Calls wait(), then copies `from` to `to`; each may be in host or device memory.
  Status copy(std::span<float> to, std::span<const float> from);

  /// Host memory, with unspecified contents, that stands for a device array while it is held. Null if the
  /// client uses the array itself, or would reject it.
  using HostCopy = std::shared_ptr<std::vector<float>>;
  HostCopy hostCopyFor(std::span<const float> array);

  /// The values of a device array, for a client that initializes a daemon's model with them: in host memory
  /// until endInitialization(). Empty if CUDA fails, which endInitialization() reports.
  std::span<const float> beginInitialization(std::span<const float> array);
  /// Frees the memory of beginInitialization() and returns its status. Called after each call that may
  /// initialize a model.
  Status endInitialization();

 private:
  DeviceMemory(int device, std::unique_ptr<DeviceCopier> copier, Interrupted interrupted)
      : index_(device), copier_(std::move(copier)), interrupted_(std::move(interrupted)) {}
  bool fits(std::span<const float> array) const;

  const int index_;
  const std::unique_ptr<DeviceCopier> copier_;
  const Interrupted interrupted_;
  size_t elements_ = 0;
  bool usesDevice_ = false;           // the client uses device memory directly
  std::vector<HostCopy> hostCopies_;  // those without another owner are free
  std::vector<float> hostValues_;
  Status copyStatus_;
};

}  // namespace psd::python
