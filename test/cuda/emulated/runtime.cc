// The functions of cuda_runtime.h.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "test/cuda/emulated/block.h"
#include "test/cuda/emulated/device.h"
#include "test/cuda/emulated/fail.h"
#include "test/cuda/emulated/memory.h"
#include "test/cuda/emulated/stream.h"

namespace psd::emulated {
namespace {

constexpr int kDevices = 2;
constexpr size_t kDeviceBytes = size_t{4} << 30;
constexpr uint32_t kThreadsMax = 1024;  // of a block

/// A device and its streams. Thread-safe.
struct RuntimeDevice {
  explicit RuntimeDevice(int index) : device(index, kDeviceBytes), standard(device) {}

  Device device;
  Stream standard;  ///< the one that is meant by no stream
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

/// What the process has of CUDA. Thread-safe.
struct Runtime {
  std::array<RuntimeDevice, kDevices> devices = {RuntimeDevice(0), RuntimeDevice(1)};
  Memory pinned{Memory::Use::always, SIZE_MAX};
};

/// Never destroyed, as little as the driver is: streams may be in use while the process ends.
Runtime& runtime() {
  static Runtime& only = *new Runtime;
  return only;
}

thread_local int currentDevice = 0;
thread_local cudaError_t lastError = cudaSuccess;

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) lastError = error;
  return error;
}

/// The device that is current on this thread, for a call that a callback must not make.
RuntimeDevice& current() {
  if (Stream::onDriverThread()) fail("a callback calls the CUDA runtime");
  return runtime().devices[currentDevice];
}

/// The stream of the current device that is meant; null: of another one, or destroyed.
Stream* streamOf(RuntimeDevice& device, Stream* stream) {
  if (stream == nullptr) return &device.standard;
  return device.has(stream) ? stream : nullptr;
}

/// `use(stream)` where the stream is the current device's and that works, else the error.
template <class Use>
cudaError_t onStream(cudaStream_t stream, const Use& use) {
  RuntimeDevice& device = current();
  Stream* const own = streamOf(device, stream);
  if (own == nullptr) return answer(cudaErrorInvalidResourceHandle);
  if (device.device.failed) return answer(cudaErrorLaunchFailure);
  return answer(use(*own));
}

bool isOnDevice(const void* memory, size_t bytes) {
  auto& devices = runtime().devices;
  return std::any_of(devices.begin(), devices.end(),
                     [&](RuntimeDevice& each) { return each.device.memory.touches(memory, bytes); });
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

}  // namespace

void failDevice(int device) { runtime().devices.at(device).device.failed = true; }

void queueKernel(uint32_t blocks, uint32_t threads, cudaStream_t stream, std::function<void()> kernel) {
  onStream(stream, [&](Stream& own) {
    if (blocks == 0 || threads == 0 || threads > kThreadsMax) return cudaErrorInvalidConfiguration;
    own.queue([blocks, threads, kernel = std::move(kernel)] {
      thread_local Blocks runner;
      runner.run(blocks, threads, kernel);
    });
    return cudaSuccess;
  });
}

}  // namespace psd::emulated

using namespace psd::emulated;

cudaError_t cudaGetLastError() {
  current();
  return std::exchange(lastError, cudaSuccess);
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return cudaGetErrorName(error);
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= kDevices) return answer(cudaErrorInvalidDevice);
  std::snprintf(properties->name, sizeof properties->name, "emulated by the CPU");
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  current();
  if (device < 0 || device >= kDevices) return answer(cudaErrorInvalidDevice);
  currentDevice = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  RuntimeDevice& device = current();
  device.synchronize();
  return answer(device.device.failed ? cudaErrorLaunchFailure : cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t* freeBytes, size_t* totalBytes) {
  *freeBytes = current().device.memory.freeBytes();
  *totalBytes = kDeviceBytes;
  return cudaSuccess;
}

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
  return cudaMemsetAsync(memory, value, bytes, nullptr);  // which the host does not wait for either
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return onStream(stream, [&](Stream& own) {
    if (!own.device().memory.holds(memory, bytes)) return cudaErrorInvalidValue;
    own.queue([=] { std::memset(memory, value, bytes); });
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return onStream(stream, [&](Stream& own) {
    const bool toDevice = own.device().memory.holds(to, bytes);
    const bool fromDevice = own.device().memory.holds(from, bytes);
    switch (kind) {
      case cudaMemcpyHostToDevice:
        if (!toDevice || isOnDevice(from, bytes)) return cudaErrorInvalidValue;
        return copyFromHost(own, to, from, bytes);
      case cudaMemcpyDeviceToHost:
        if (isOnDevice(to, bytes) || !fromDevice) return cudaErrorInvalidValue;
        return copyToHost(own, to, from, bytes);
      case cudaMemcpyDeviceToDevice:
        if (!toDevice || !fromDevice) return cudaErrorInvalidValue;
        own.queue([=] { std::memcpy(to, from, bytes); });
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  RuntimeDevice& device = current();
  if (flags != cudaStreamNonBlocking) return answer(cudaErrorInvalidValue);
  const std::lock_guard lock(device.mutex);
  *stream = device.streams.emplace_back(std::make_unique<Stream>(device.device)).get();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  RuntimeDevice& device = current();
  std::unique_ptr<Stream> destroyed;
  const std::lock_guard lock(device.mutex);
  const auto found = std::find_if(device.streams.begin(), device.streams.end(),
                                  [&](const auto& own) { return own.get() == stream; });
  if (found == device.streams.end()) return answer(cudaErrorInvalidResourceHandle);
  destroyed = std::move(*found);
  device.streams.erase(found);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  RuntimeDevice& device = current();
  Stream* const own = streamOf(device, stream);
  if (own == nullptr) return answer(cudaErrorInvalidResourceHandle);
  own->synchronize();
  return answer(device.device.failed ? cudaErrorLaunchFailure : cudaSuccess);
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned /*flags*/) {
  Stream* const own = streamOf(current(), stream);
  if (own == nullptr) return answer(cudaErrorInvalidResourceHandle);
  own->queueOnHost(
      [=] { callback(stream, own->device().failed ? cudaErrorLaunchFailure : cudaSuccess, data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  current();
  *event = new Event;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  current();
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return onStream(stream, [&](Stream& own) {
    auto recorded = std::make_shared<std::promise<std::chrono::steady_clock::time_point>>();
    event->recorded = recorded->get_future().share();
    own.queueOnHost([recorded] { recorded->set_value(std::chrono::steady_clock::now()); });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  return onStream(stream, [&](Stream& own) {
    if (event->recorded.valid()) own.queueOnHost([recorded = event->recorded] { recorded.wait(); });
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  current();
  if (event->recorded.valid()) event->recorded.wait();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  current();
  if (!begin->recorded.valid() || !end->recorded.valid()) return answer(cudaErrorInvalidResourceHandle);
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->recorded.get() - begin->recorded.get()).count();
  return cudaSuccess;
}
