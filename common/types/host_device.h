#pragma once

// Plain C++ without third-party headers: .cu files include this.

/// Marks a function that runs on the host and, in .cu files, on the device. Always inlined: callers compiled
/// for another instruction set, or without a sanitizer, compile the body with their own flags.
#if defined(__CUDACC__)
#define PSD_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PSD_HOST_DEVICE __attribute__((always_inline)) inline
#endif
