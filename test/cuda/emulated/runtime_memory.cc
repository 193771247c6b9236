// The functions of cuda_runtime.h for memory.

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>
#include <unistd.h>

#include "test/cuda/emulated/runtime.h"

namespace psd::emulated {
namespace {

/// The memory that contains all of these device bytes; null: none.
Memory* holderOf(const void* memory, size_t bytes) {
  if (runtime().opened.holds(memory, bytes)) return &runtime().opened;
  for (RuntimeDevice& each : runtime().devices) {
    if (each.device.memory.holds(memory, bytes)) return &each.device.memory;
  }
  return nullptr;
}

bool isOnDevice(const void* memory, size_t bytes) {
  auto& devices = runtime().devices;
  return runtime().opened.touches(memory, bytes) ||
         std::any_of(devices.begin(), devices.end(),
                     [&](RuntimeDevice& each) { return each.device.memory.touches(memory, bytes); });
}

/// Whether kernels of the stream can access all of these bytes.
bool canUse(const Stream& stream, const void* memory, size_t bytes) {
  return stream.device().memory.holds(memory, bytes) || stream.device().opened.holds(memory, bytes);
}

cudaError_t copyFromHost(Stream& stream, void* to, const void* from, size_t bytes) {
  if (runtime().pinned.holds(from, bytes)) {
    stream.queue([=] { std::memcpy(to, from, bytes); });
    return cudaSuccess;
  }
  // Pageable memory is copied away before the call returns.
  const auto* const begin = static_cast<const std::byte*>(from);
  stream.queue([to, bytes, staged = std::vector<std::byte>(begin, begin + bytes)] {
    std::memcpy(to, staged.data(), bytes);
  });
  return cudaSuccess;
}

cudaError_t copyToHost(Stream& stream, void* to, const void* from, size_t bytes) {
  stream.queue([=] { std::memcpy(to, from, bytes); });
  if (!runtime().pinned.holds(to, bytes)) stream.synchronize();
  return cudaSuccess;
}

/// Between any two devices.
cudaError_t copyOnDevices(Stream& stream, void* to, const void* from, size_t bytes) {
  Memory* const target = holderOf(to, bytes);
  Memory* const source = holderOf(from, bytes);
  if (target == nullptr || source == nullptr) return cudaErrorInvalidValue;
  stream.queue([=] {
    const Memory::Work onTarget(*target), onSource(*source);
    std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}

cudaError_t copyOnHost(Stream& stream, void* to, const void* from, size_t bytes) {
  stream.queue([=] { std::memcpy(to, from, bytes); });
  stream.synchronize();
  return cudaSuccess;
}

/// The kind of a copy, from the locations of its bytes.
cudaMemcpyKind kindOf(const void* to, const void* from, size_t bytes) {
  if (isOnDevice(to, bytes)) {
    return isOnDevice(from, bytes) ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice;
  }
  return isOnDevice(from, bytes) ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost;
}

}  // namespace
}  // namespace psd::emulated

using namespace psd::emulated;

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  RuntimeDevice& device = current();
  if (device.device.failed) return answer(cudaErrorLaunchFailure);
  *memory = device.device.memory.allocate(bytes);
  return answer(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void* memory) {
  current();
  if (memory == nullptr) return cudaSuccess;
  for (RuntimeDevice& device : runtime().devices) {
    if (!device.device.memory.holds(memory, 1)) continue;
    device.synchronize();
    return answer(device.device.memory.release(memory) ? cudaSuccess : cudaErrorInvalidValue);
  }
  return answer(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  current();
  *memory = runtime().pinned.allocate(bytes);
  return answer(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFreeHost(void* memory) {
  current();
  if (memory == nullptr) return cudaSuccess;
  return answer(runtime().pinned.release(memory) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);  // asynchronous for the host as well
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return onStream(stream, [&](Stream& own) {
    if (!canUse(own, memory, bytes)) return cudaErrorInvalidValue;
    own.queue([=] { std::memset(memory, value, bytes); });
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return onStream(stream, [&](Stream& own) {
    if (bytes == 0) return cudaSuccess;
    const cudaMemcpyKind actual = kindOf(to, from, bytes);
    if (kind != actual && kind != cudaMemcpyDefault) return cudaErrorInvalidValue;
    switch (actual) {
      case cudaMemcpyHostToDevice:
        return canUse(own, to, bytes) ? copyFromHost(own, to, from, bytes) : cudaErrorInvalidValue;
      case cudaMemcpyDeviceToHost:
        return canUse(own, from, bytes) ? copyToHost(own, to, from, bytes) : cudaErrorInvalidValue;
      case cudaMemcpyDeviceToDevice: return copyOnDevices(own, to, from, bytes);
      default: return copyOnHost(own, to, from, bytes);
    }
  });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  current();
  for (RuntimeDevice& device : runtime().devices) {
    const auto found = device.device.memory.handleOf(memory);
    if (!found) continue;
    if (device.device.failed) return answer(cudaErrorLaunchFailure);
    *handle = std::bit_cast<cudaIpcMemHandle_t>(*found);
    return cudaSuccess;
  }
  return answer(cudaErrorInvalidValue);
}

cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags) {
  if (current().device.failed) return answer(cudaErrorLaunchFailure);
  if (flags != cudaIpcMemLazyEnablePeerAccess) return answer(cudaErrorInvalidValue);
  const auto file = std::bit_cast<SharedFile::Handle>(handle);
  if (file.process == getpid()) {
    return answer(SharedFile::open(file) ? cudaErrorDeviceUninitialized : cudaErrorInvalidResourceHandle);
  }
  *memory = runtime().opened.open(file);
  return answer(*memory == nullptr ? cudaErrorInvalidResourceHandle : cudaSuccess);
}

cudaError_t cudaIpcCloseMemHandle(void* memory) {
  current();
  return answer(runtime().opened.release(memory) ? cudaSuccess : cudaErrorInvalidValue);
}
