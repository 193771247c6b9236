#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "trainer/client/api/client.h"
#include "trainer/client/transport/device_copier.h"
#include "trainer/python/array_arguments.h"

namespace psd::python {

/// The CUDA device on which the arrays of a client's calls are. If the daemon does not share memory of its
/// devices with the client, calls use copies in host memory. Thread-safe; used without the GIL.
class DeviceMemory {
 public:
  /// Fails if the process has no CUDA runtime or no such device. `keepWaiting`: polled by every wait, which
  /// it ends when it returns false.
  static Result<std::shared_ptr<DeviceMemory>> make(int device, std::function<bool()> keepWaiting);

  CudaDevice device() const;
  /// Sets the form of the model's arrays. Called before the client's join() or observe().
  void expect(const ArrayForm& form);
  /// Called after join() or observe(), with no call in progress.
  void begin(Client& client);

  /// Whether wait() would return immediately.
  Result<bool> idle();
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
  DeviceMemory(int device, std::unique_ptr<DeviceCopier> copier, std::function<bool()> keepWaiting)
      : index_(device), copier_(std::move(copier)), keepWaiting_(std::move(keepWaiting)) {}
  bool fits(std::span<const float> array) const;

  const int index_;
  const std::unique_ptr<DeviceCopier> copier_;
  const std::function<bool()> keepWaiting_;
  std::mutex mutex_;  // guards the rest, and the copier
  ArrayForm form_;
  bool usesDevice_ = false;           // the client uses device memory directly
  std::vector<HostCopy> hostCopies_;  // those without another owner are free
  std::vector<float> hostValues_;
  Status copyStatus_;
};

}  // namespace psd::python
