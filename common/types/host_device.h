#pragma once

// Plain C++ and no third-party header: .cu files include this.

/// Marks a function that runs on the host and, in .cu files, on the device. It is always inlined: callers
/// compiled for another instruction set, or without a sanitizer, take the body along.
#if defined(__CUDACC__)
#define PSD_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PSD_HOST_DEVICE __attribute__((always_inline)) inline
#endif
