#pragma once

// The part of the CUDA runtime that psd uses, for tests without a GPU: the sources of the CUDA store,
// compiled as C++, include this header in place of the Toolkit's. Streams are threads, and kernels run on the
// CPU, block after block. It is as asynchronous as a device and stricter: memory.h and stream.h say which
// errors end the program. Speeds are meaningless. Names, values and errors are those of the CUDA Runtime
// API, 12.0.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

// --- What kernels use ---------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local  // a block's threads are fibers of one thread

struct uint3 {
  uint32_t x = 0, y = 0, z = 0;
};
extern constinit thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;  // y and z: always 0

void __syncthreads();
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// --- The runtime ----------------------------------------------------------------------------------------

#define CUDART_VERSION 12000
#define CUDART_CB

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorDeviceUninitialized = 201,  // the driver's CUDA_ERROR_INVALID_CONTEXT
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};

namespace psd::emulated {
class Stream;
struct Event;
}  // namespace psd::emulated
using cudaStream_t = psd::emulated::Stream*;
using cudaEvent_t = psd::emulated::Event*;
using cudaStreamCallback_t = void (*)(cudaStream_t, cudaError_t, void*);

struct cudaDeviceProp {
  char name[256];
};
struct cudaFuncAttributes {};
struct cudaIpcMemHandle_t {
  char reserved[64];
};

inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaHostAllocPortable = 1;
inline constexpr unsigned cudaIpcMemLazyEnablePeerAccess = 1;

extern "C" {

cudaError_t cudaGetLastError();
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);

cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(size_t* freeBytes, size_t* totalBytes);

cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemset(void* memory, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);

// Only memory from cudaMalloc() in whole blocks of 2 MiB, and only for other processes. Opened memory belongs
// to every device here, and remains valid after the other process has freed it or has died. Closing waits for
// no stream.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory);
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void* memory);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned flags);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);

}  // extern "C"

template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel*) {
  return cudaSuccess;
}

// --- Launches -------------------------------------------------------------------------------------------

namespace psd::emulated {

/// Queues `kernel` for each thread of each block. Errors are reported by cudaGetLastError().
void queueKernel(uint32_t blocks, uint32_t threads, cudaStream_t stream, std::function<void()> kernel);

/// kernel<<<blocks, threads, sharedBytes, stream>>>(arguments…), which rewrite.cmake turns into
/// launch([](auto… a) { kernel(a…); }, blocks, threads, sharedBytes, stream)(arguments…).
template <class Kernel>
auto launch(Kernel kernel, uint32_t blocks, uint32_t threads, size_t /*sharedBytes*/ = 0,
            cudaStream_t stream = nullptr) {
  return [=](auto... arguments) { queueKernel(blocks, threads, stream, [=] { kernel(arguments...); }); };
}

}  // namespace psd::emulated
