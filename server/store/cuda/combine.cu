#include <algorithm>
#include <cmath>
#include <string>

#include "server/store/cuda/combine.cuh"
#include "server/store/cuda/device.cuh"
#include "server/store/cuda/lane.cuh"
#include "server/store/cuda/launch.cuh"
#include "server/store/sorting_network.h"

namespace psd {
namespace {

constexpr uint32_t kMax = kCombinedOnDeviceMax;
constexpr uint32_t kTileElements = 64;               // of each gradient in shared memory, for distances
constexpr uint32_t kTileStride = kTileElements + 1;  // avoids bank conflicts within a column
constexpr uint32_t kDistanceBlocks = 256;
constexpr uint32_t kPairsMax = kMax * (kMax - 1) / 2;
static_assert((kDistanceBlocks + 1) * kPairsMax * sizeof(double) <=
              CudaLane::kScratchElements * sizeof(float));
constexpr uint32_t kPairsPerThread = (kPairsMax + kThreadsPerBlock - 1) / kThreadsPerBlock;

/// Gradients in device memory, passed to a kernel by value.
struct Gradients {
  const float* at[kMax];
  float weights[kMax];  // weighted sum only
  uint32_t count = 0;
};

/// out = Σ weights · gradients, or out += if `more`; summed in the order of the gradients, as on the CPU.
__global__ void weightedSumKernel(const Gradients gradients, uint64_t n, bool more, float* out) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    float sum = more ? out[i] : gradients.weights[0] * gradients.at[0][i];
    for (uint32_t row = more ? 0 : 1; row < gradients.count; ++row) {
      sum += gradients.weights[row] * gradients.at[row][i];
    }
    out[i] = sum;
  }
}

/// At most kCapacity gradients, a power of two. One element per thread, sorted in registers; sums are in
/// double, as on the CPU.
template <uint32_t kCapacity>
__global__ void trimmedMeanKernel(const Gradients gradients, uint64_t n, uint32_t trim, float* out) {
  const uint32_t last = gradients.count - trim;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    float values[kCapacity];
#pragma unroll
    for (uint32_t row = 0; row < kCapacity; ++row) {
      values[row] = row < gradients.count ? gradients.at[row][i] : INFINITY;
    }
    sortByNetwork<kCapacity>(values);
    double sum = 0;
    bool begun = false;
#pragma unroll
    for (uint32_t row = 0; row < kCapacity; ++row) {
      if (row < trim || row >= last) continue;
      sum = begun ? sum + values[row] : values[row];
      begun = true;
    }
    out[i] = static_cast<float>(sum / static_cast<double>(last - trim));
  }
}

/// Block b writes its part of each pair's sum to parts[b · pairs …]. Each thread owns its pairs, so the order
/// of additions is fixed.
__global__ void distanceKernel(const Gradients gradients, uint64_t n, uint32_t pairs, double* parts) {
  __shared__ float tile[kMax * kTileStride];
  __shared__ uint8_t first[kPairsMax], second[kPairsMax];
  for (uint32_t i = threadIdx.x; i < gradients.count; i += blockDim.x) {
    uint32_t pair = i * (2 * gradients.count - i - 1) / 2;
    for (uint32_t j = i + 1; j < gradients.count; ++j, ++pair) {
      first[pair] = static_cast<uint8_t>(i);
      second[pair] = static_cast<uint8_t>(j);
    }
  }
  double sums[kPairsPerThread] = {};
  for (uint64_t begin = uint64_t{blockIdx.x} * kTileElements; begin < n;
       begin += uint64_t{gridDim.x} * kTileElements) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < gradients.count * kTileElements; i += blockDim.x) {
      const uint32_t row = i / kTileElements, column = i % kTileElements;
      tile[row * kTileStride + column] = begin + column < n ? gradients.at[row][begin + column] : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t mine = 0; mine < kPairsPerThread; ++mine) {
      const uint32_t pair = threadIdx.x + mine * kThreadsPerBlock;
      if (pair >= pairs) break;
      const float* a = tile + first[pair] * kTileStride;
      const float* b = tile + second[pair] * kTileStride;
      float sum = 0;
      for (uint32_t column = 0; column < kTileElements; ++column) {
        const float difference = a[column] - b[column];
        sum += difference * difference;
      }
      sums[mine] += sum;
    }
  }
#pragma unroll
  for (uint32_t mine = 0; mine < kPairsPerThread; ++mine) {
    const uint32_t pair = threadIdx.x + mine * kThreadsPerBlock;
    if (pair < pairs) parts[uint64_t{blockIdx.x} * pairs + pair] = sums[mine];
  }
}

__global__ void addPartsKernel(const double* parts, uint32_t blocks, uint32_t pairs, double* sums) {
  const uint32_t pair = blockIdx.x * blockDim.x + threadIdx.x;
  if (pair >= pairs) return;
  double sum = 0;
  for (uint32_t block = 0; block < blocks; ++block) sum += parts[uint64_t{block} * pairs + pair];
  sums[pair] = sum;
}

/// One block per pair, one thread per lane: each sum is accumulated in element order, so it is bit-identical
/// to the CPU's.
__global__ void productsKernel(const Gradients gradients, uint64_t n, double* lanes) {
  uint32_t first = 0, pair = blockIdx.x;
  while (pair >= gradients.count - first) pair -= gradients.count - first++;
  const float* const a = gradients.at[first];
  const float* const b = gradients.at[first + pair];
  double& lane = lanes[uint64_t{blockIdx.x} * InnerProducts::kLanes + threadIdx.x];
  double sum = lane;
  for (uint64_t i = threadIdx.x; i < n; i += InnerProducts::kLanes) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  lane = sum;
}

/// The gradients from `offset` on; for a weighted sum only those with a non-zero weight.
Gradients gradientsOf(std::span<const StagedGradient> staged, std::span<const float> weights,
                      uint64_t offset) {
  Gradients gradients;
  for (size_t i = 0; i < staged.size(); ++i) {
    if (!weights.empty() && weights[i] == 0.f) continue;
    gradients.at[gradients.count] = staged[i].values.data() + offset;
    gradients.weights[gradients.count] = weights.empty() ? 1.f : weights[i];
    gradients.count++;
  }
  return gradients;
}

Status checkCount(size_t count) {
  if (count <= kMax) return {};
  return {ErrorCode::invalidArgument, "a round of " + std::to_string(count) +
                                          " gradients on CUDA; all aggregators except mean support at most " +
                                          std::to_string(kMax)};
}

void launchWeightedSum(std::span<const StagedGradient> staged, std::span<const float> weights,
                       uint64_t offset, uint64_t count, float* out, cudaStream_t stream) {
  bool more = false;
  for (size_t begin = 0; begin < staged.size(); begin += kMax) {
    const size_t some = std::min<size_t>(kMax, staged.size() - begin);
    const Gradients gradients =
        gradientsOf(staged.subspan(begin, some), weights.subspan(begin, some), offset);
    if (gradients.count == 0) continue;
    weightedSumKernel<<<blocksFor(count), kThreadsPerBlock, 0, stream>>>(gradients, count, more, out);
    more = true;
  }
  if (!more) cudaMemsetAsync(out, 0, count * sizeof(float), stream);
}

template <uint32_t kCapacity>
void launchTrimmedMean(const Gradients& gradients, uint32_t trim, uint64_t count, float* out,
                       cudaStream_t stream) {
  if constexpr (kCapacity < kMax) {
    if (gradients.count > kCapacity) {
      return launchTrimmedMean<kCapacity * 2>(gradients, trim, count, out, stream);
    }
  }
  trimmedMeanKernel<kCapacity>
      <<<blocksFor(count), kThreadsPerBlock, 0, stream>>>(gradients, count, trim, out);
}

}  // namespace

Status launchCombine(int device, std::span<const StagedGradient> gradients, const Combination& combination,
                     uint64_t offset, uint64_t count, float* out, cudaStream_t stream) {
  cudaGetLastError();  // clears the error of an earlier call
  if (combination.kind == Combination::Kind::weightedSum) {
    combination.forEachWeights(
        offset, count, [&](std::span<const float> weights, uint64_t from, uint64_t some) {
          launchWeightedSum(gradients, weights, from, some, out + (from - offset), stream);
        });
  } else {
    PSD_RETURN_IF_ERROR(checkCount(gradients.size()));
    launchTrimmedMean<2>(gradientsOf(gradients, {}, offset), combination.trim, count, out, stream);
  }
  return cudaStatus(device, "combining kernel", cudaGetLastError());
}

Result<const double*> launchDistances(int device, std::span<const StagedGradient> gradients, uint64_t count,
                                      float* scratch, cudaStream_t stream) {
  PSD_RETURN_IF_ERROR(checkCount(gradients.size()));
  const auto pairs = static_cast<uint32_t>(SquaredDistances::pairCount(gradients.size()));
  auto* const sums = reinterpret_cast<double*>(scratch);
  if (pairs == 0) return static_cast<const double*>(sums);
  double* const parts = sums + pairs;
  cudaGetLastError();  // clears the error of an earlier call
  distanceKernel<<<kDistanceBlocks, kThreadsPerBlock, 0, stream>>>(gradientsOf(gradients, {}, 0), count,
                                                                   pairs, parts);
  addPartsKernel<<<blocksFor(pairs), kThreadsPerBlock, 0, stream>>>(parts, kDistanceBlocks, pairs, sums);
  PSD_RETURN_IF_ERROR(cudaStatus(device, "distance kernel", cudaGetLastError()));
  return static_cast<const double*>(sums);
}

Status launchProducts(int device, std::span<const StagedGradient> gradients, uint64_t offset, uint64_t count,
                      double* lanes, cudaStream_t stream) {
  PSD_RETURN_IF_ERROR(checkCount(gradients.size()));
  const auto pairs = static_cast<uint32_t>(InnerProducts::pairCount(gradients.size()));
  cudaGetLastError();  // clears the error of an earlier call
  productsKernel<<<pairs, InnerProducts::kLanes, 0, stream>>>(gradientsOf(gradients, {}, offset), count,
                                                              lanes);
  return cudaStatus(device, "products kernel", cudaGetLastError());
}

}  // namespace psd
