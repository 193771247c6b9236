#pragma once

// Shared by the functions of cuda_runtime.h.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda_runtime.h>

#include "test/cuda/emulated/memory.h"
#include "test/cuda/emulated/stream.h"

namespace psd::emulated {

inline constexpr int kDevices = 2;
inline constexpr size_t kDeviceBytes = size_t{4} << 30;

/// A device and its streams. Thread-safe.
struct RuntimeDevice {
  RuntimeDevice(int index, Memory& opened) : device(index, kDeviceBytes, opened), standard(device) {}

  Device device;
  Stream standard;  ///< the default stream
  std::mutex mutex;
  std::vector<std::unique_ptr<Stream>> streams;

  bool has(const Stream* stream) {
    const std::lock_guard lock(mutex);
    return std::any_of(streams.begin(), streams.end(), [&](const auto& own) { return own.get() == stream; });
  }

  void synchronize() {
    standard.synchronize();
    const std::lock_guard lock(mutex);
    for (const auto& stream : streams) stream->synchronize();
  }
};

/// The CUDA state of the process. Thread-safe.
struct Runtime {
  Memory pinned{Memory::Use::always, SIZE_MAX};
  Memory opened{Memory::Use::atWork, SIZE_MAX};  ///< by cudaIpcOpenMemHandle()
  std::array<RuntimeDevice, kDevices> devices = {RuntimeDevice(0, opened), RuntimeDevice(1, opened)};
};

/// Never destroyed, like the driver: streams may be in use while the process ends.
Runtime& runtime();

/// Returns the error, and records it for cudaGetLastError().
cudaError_t answer(cudaError_t error);

/// The current device of this thread, for a call that a callback must not make.
RuntimeDevice& current();

/// The stream; null: it belongs to another device, or is destroyed.
Stream* streamOf(RuntimeDevice& device, Stream* stream);

/// `use(stream)` if the stream belongs to the current device; otherwise the error.
template <class Use>
cudaError_t onStream(cudaStream_t stream, const Use& use) {
  RuntimeDevice& device = current();
  Stream* const own = streamOf(device, stream);
  if (own == nullptr) return answer(cudaErrorInvalidResourceHandle);
  if (device.device.failed) return answer(cudaErrorLaunchFailure);
  return answer(use(*own));
}

}  // namespace psd::emulated
