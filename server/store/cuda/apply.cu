#include <utility>

#include "server/store/cuda/apply.cuh"
#include "server/store/cuda/launch.cuh"
#include "server/store/cuda/step.cuh"

namespace psd {
namespace {

/// w, g and slots are 16-byte aligned, `n` floats each.
template <class Step, class Change, class... Slots>
__global__ void applyKernel(const Step step, const Change change, uint64_t n, float* w, const float* g,
                            Slots*... slots) {
  const uint64_t first = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = first; i < n / 4; i += stride) {
    const Four gradients = reinterpret_cast<const Four*>(g)[i];
    stepFour(step, change, 4 * i, reinterpret_cast<Four*>(w) + i, gradients,
             reinterpret_cast<Four*>(slots) + i...);
  }
  const uint64_t rest = n / 4 * 4 + first;
  if (rest < n) stepOne(step, change, rest, w + rest, g[rest], slots + rest...);
}

/// Like applyKernel(), with a gradient in `code`, which is decoded in the process.
template <class Step, class Change, class... Slots>
__global__ void applyDenseKernel(const Step step, const Change change, uint64_t n, float* w,
                                 const DenseCode code, const unsigned char* g, Slots*... slots) {
  const uint64_t first = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = first; i < n / 4; i += stride) {
    Four gradients;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) gradients.at[j] = denseValue(code, g, 4 * i + j);
    stepFour(step, change, 4 * i, reinterpret_cast<Four*>(w) + i, gradients,
             reinterpret_cast<Four*>(slots) + i...);
  }
  const uint64_t rest = n / 4 * 4 + first;
  if (rest < n) stepOne(step, change, rest, w + rest, denseValue(code, g, rest), slots + rest...);
}

/// One step for w[places[0 … n)] only. No place occurs twice, so the result equals the CPU's.
template <class Step>
__global__ void scatterKernel(const Step step, uint64_t n, const uint32_t* places, const float* g, float* w) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    stepOne(step, NoChange{}, i, w + places[i], g[i]);
  }
}

__global__ void fillKernel(float* data, uint64_t n, float value) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    data[i] = value;
  }
}

/// Reads each value once, so that the copy is exactly what was checked even if another process writes `from`.
__global__ void copyCheckedKernel(float* to, const volatile float* from, uint64_t n, uint32_t* nonFinite) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    const float value = from[i];
    to[i] = value;
    if (!(value - value == 0.f)) *nonFinite = 1;
  }
}

/// One block per partial sum, which sums its strides in double in a fixed order.
__global__ void squaresKernel(const float* data, uint64_t n, double* parts) {
  __shared__ double sums[kThreadsPerBlock];
  double sum = 0;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    sum += static_cast<double>(data[i]) * data[i];
  }
  sums[threadIdx.x] = sum;
  for (uint32_t half = kThreadsPerBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) parts[blockIdx.x] += sums[0];
}

template <class Step, class Change, size_t... kSlots>
void launchStep(const Step& step, const Change& change, const DeviceSlice& slice, cudaStream_t stream,
                std::index_sequence<kSlots...>) {
  const uint32_t blocks = blocksFor((slice.count + 3) / 4);
  if (slice.code) {
    applyDenseKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(
        step, change, slice.count, slice.weights + slice.offset, *slice.code,
        static_cast<const unsigned char*>(slice.gradient), slice.slots[kSlots] + slice.offset...);
  } else {
    applyKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(
        step, change, slice.count, slice.weights + slice.offset, static_cast<const float*>(slice.gradient),
        slice.slots[kSlots] + slice.offset...);
  }
}

/// The operands of `count` weights from element `begin` on; a gradient in a code has no parts.
DeviceSlice partOf(DeviceSlice slice, uint64_t begin, uint64_t count) {
  const uint64_t at = begin - slice.offset;
  slice.offset = begin;
  slice.count = count;
  if (!slice.code) slice.gradient = static_cast<const float*>(slice.gradient) + at;
  if (slice.change && slice.change->pulled) slice.change->pulled += at;
  if (slice.change && slice.change->meanSquare) slice.change->meanSquare += at;
  return slice;
}

}  // namespace

cudaError_t applyOnDevice(const Optimizer& optimizer, const UpdateScalars& update, const DeviceSlice& slice,
                          cudaStream_t stream) {
  cudaGetLastError();  // clears the error of an earlier call
  forEachStep(update, slice.offset, slice.count,
              [&](const UpdateScalars& run, uint64_t begin, uint64_t count) {
                const DeviceSlice part = partOf(slice, begin, count);
                optimizer.visitStep(run, [&]<class Step>(const Step& step) {
                  constexpr auto kSlots = std::make_index_sequence<Step::kSlots>();
                  if (part.change) {
                    launchStep(step, *part.change, part, stream, kSlots);
                  } else {
                    launchStep(step, NoChange{}, part, stream, kSlots);
                  }
                });
              });
  return cudaGetLastError();
}

cudaError_t applyEntriesOnDevice(const Optimizer& optimizer, const UpdateScalars& update,
                                 const DeviceEntries& entries, cudaStream_t stream) {
  cudaGetLastError();
  bool hasSlots = false;
  optimizer.visitStep(update, [&]<class Step>(const Step& step) {
    if constexpr (Step::kSlots == 0) {
      scatterKernel<<<blocksFor(entries.count), kThreadsPerBlock, 0, stream>>>(
          step, entries.count, entries.places, entries.values, entries.weights + entries.offset);
    } else {
      hasSlots = true;
    }
  });
  return hasSlots ? cudaErrorInvalidValue : cudaGetLastError();
}

cudaError_t addSquaresOnDevice(const float* data, uint64_t n, double* parts, cudaStream_t stream) {
  cudaGetLastError();
  squaresKernel<<<kSquareParts, kThreadsPerBlock, 0, stream>>>(data, n, parts);
  return cudaGetLastError();
}

cudaError_t copyCheckedOnDevice(float* to, const float* from, uint64_t n, uint32_t* nonFinite,
                                cudaStream_t stream) {
  cudaGetLastError();
  copyCheckedKernel<<<blocksFor(n), kThreadsPerBlock, 0, stream>>>(to, from, n, nonFinite);
  return cudaGetLastError();
}

cudaError_t fillOnDevice(float* data, uint64_t n, float value) {
  fillKernel<<<blocksFor(n), kThreadsPerBlock>>>(data, n, value);
  return cudaGetLastError();
}

cudaError_t checkDeviceCode() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, fillKernel);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace psd
