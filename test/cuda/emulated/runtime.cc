// The functions of cuda_runtime.h except those of memory.

#include "test/cuda/emulated/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <cuda_runtime.h>

#include "test/cuda/emulated/block.h"
#include "test/cuda/emulated/device.h"
#include "test/cuda/emulated/fail.h"

namespace psd::emulated {
namespace {

constexpr uint32_t kThreadsMax = 1024;  // in a block

thread_local int currentDevice = 0;
thread_local cudaError_t lastError = cudaSuccess;

}  // namespace

Runtime& runtime() {
  static Runtime& only = *new Runtime;
  return only;
}

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) lastError = error;
  return error;
}

RuntimeDevice& current() {
  if (Stream::onDriverThread()) fail("a callback calls the CUDA runtime");
  return runtime().devices[currentDevice];
}

Stream* streamOf(RuntimeDevice& device, Stream* stream) {
  if (stream == nullptr) return &device.standard;
  return device.has(stream) ? stream : nullptr;
}

void failDevice(int device) { runtime().devices.at(device).device.failed = true; }

void leaveFree(int device, size_t bytes) { runtime().devices.at(device).device.memory.leaveFree(bytes); }

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
    case cudaErrorDeviceUninitialized: return "cudaErrorDeviceUninitialized";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorDeviceUninitialized: return "invalid device context";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return cudaGetErrorName(error);
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
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

cudaError_t cudaGetDevice(int* device) {
  current();
  *device = currentDevice;
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

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  RuntimeDevice& device = current();
  if (flags != cudaStreamNonBlocking) return answer(cudaErrorInvalidValue);
  const std::lock_guard lock(device.mutex);
  *stream = device.streams.emplace_back(std::make_unique<Stream>(device.device)).get();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  RuntimeDevice& device = current();
  const std::lock_guard lock(device.mutex);
  const auto found = std::find_if(device.streams.begin(), device.streams.end(),
                                  [&](const auto& own) { return own.get() == stream; });
  if (found == device.streams.end()) return answer(cudaErrorInvalidResourceHandle);
  // As in CUDA, queued work is not awaited.
  if (!(*found)->idle()) std::thread([destroyed = std::move(*found)] {}).detach();
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

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  RuntimeDevice& device = current();
  const Stream* const own = streamOf(device, stream);
  if (own == nullptr) return answer(cudaErrorInvalidResourceHandle);
  if (device.device.failed) return answer(cudaErrorLaunchFailure);
  return answer(own->idle() ? cudaSuccess : cudaErrorNotReady);
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

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  return cudaEventCreate(event);
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
  RuntimeDevice& device = current();
  if (event->recorded.valid()) event->recorded.wait();
  return answer(device.device.failed ? cudaErrorLaunchFailure : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  current();
  if (!begin->recorded.valid() || !end->recorded.valid()) return answer(cudaErrorInvalidResourceHandle);
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->recorded.get() - begin->recorded.get()).count();
  return cudaSuccess;
}
