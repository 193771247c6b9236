#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "common/types/row_initial_values.h"
#include "server/store/cuda/launch.cuh"
#include "server/store/cuda/step.cuh"
#include "server/store/gradient_change.h"
#include "server/store/rows/cuda/row_kernels.cuh"
#include "server/store/rows/row_squares.h"

namespace psd {
namespace {

/// Rows per block whose squares are summed at a time, by kSquareLanes threads each.
constexpr uint32_t kRowsPerBlock = kThreadsPerBlock / kSquareLanes;

/// Calls visit(row, index) for each float of the rows, of which there are less than 2^32.
template <class Visit>
__device__ void forEachFloat(uint32_t rows, uint32_t width, const Visit& visit) {
  const uint32_t stride = gridDim.x * blockDim.x, all = rows * width;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) visit(i / width, i % width);
}

__global__ void gatherRowsKernel(const DevicePlane plane, float* out) {
  forEachFloat(plane.count, plane.width, [&](uint32_t row, uint32_t i) {
    out[uint64_t{row} * plane.width + i] = plane.places[row][plane.offset + i];
  });
}

__global__ void scatterRowsKernel(const DevicePlane plane, const float* values) {
  forEachFloat(plane.count, plane.width, [&](uint32_t row, uint32_t i) {
    plane.places[row][plane.offset + i] = values[uint64_t{row} * plane.width + i];
  });
}

__global__ void fillRowsKernel(const DevicePlane plane, float value) {
  forEachFloat(plane.count, plane.width,
               [&](uint32_t row, uint32_t i) { plane.places[row][plane.offset + i] = value; });
}

/// Initial value `index` of a row, equal to RowInitial::fill().
__device__ float initialRowValue(const RowInitial& initial, RowKey key, uint32_t index) {
  if (initial.kind == RowInitial::Kind::zero) return 0.f;
  if (initial.kind == RowInitial::Kind::normal) {
    return normalRowValue(key, index, normalRowStep(initial.scale));
  }
  return uniformRowValue(key, index, uniformRowStep(initial.scale), initial.scale);
}

__global__ void initialRowsKernel(const DevicePlane plane, const uint64_t* ids, const RowInitial initial) {
  forEachFloat(plane.count, plane.width, [&](uint32_t row, uint32_t i) {
    plane.places[row][plane.offset + i] = initialRowValue(initial, rowKey(initial.seed, ids[row]), i);
  });
}

/// Applies the change to the gradients. kSquareLanes threads share a row. All threads of a block take the
/// same branches, because they synchronize.
__global__ void changeRowsKernel(const RowChange change, float* gradients, uint32_t count, uint32_t dim) {
  __shared__ float sums[kThreadsPerBlock];
  __shared__ float factors[kRowsPerBlock];
  constexpr float kAsItIs = -1;  // no scaling
  const ElementChange element{change.scale, change.limit, 0};
  const bool bounded = change.rowNorm != std::numeric_limits<float>::infinity();
  const uint32_t lane = threadIdx.x % kSquareLanes, own = threadIdx.x / kSquareLanes;
  for (uint64_t first = uint64_t{blockIdx.x} * kRowsPerBlock; first < count;
       first += uint64_t{gridDim.x} * kRowsPerBlock) {
    const bool there = first + own < count;
    float* const g = gradients + (first + own) * dim;
    float sum = 0;
    for (uint32_t i = lane; there && i < dim; i += kSquareLanes) {
      const float value = element.clipped(g[i]);
      g[i] = value;
      sum += value * value;
    }
    if (!bounded) continue;
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (lane == 0) {
      addSquareLanes(sums + threadIdx.x);
      const float norm = sqrtf(sums[threadIdx.x]);
      factors[own] = norm > change.rowNorm ? change.rowNorm / norm : kAsItIs;
    }
    __syncthreads();
    const float factor = factors[own];
    if (factor == kAsItIs) continue;
    for (uint32_t i = lane; there && i < dim; i += kSquareLanes) g[i] *= factor;
  }
}

/// Index of the row's first gradient.
__device__ uint32_t beginOf(const DeviceUpdate& update, uint32_t row) {
  return row == 0 ? 0 : update.ends[row - 1];
}

template <class Step>
__device__ const Step& stepOf(const DeviceUpdate& update, uint32_t gradient) {
  const uint32_t index = update.stepOf == nullptr ? 0 : update.stepOf[gradient];
  return static_cast<const Step*>(update.steps)[index];
}

/// Each thread performs all steps of four weights, or of one if `dim` is not a multiple of four.
template <class Step, size_t... kSlots>
__global__ void stepRowsKernel(const DeviceUpdate update, const Step*, std::index_sequence<kSlots...>) {
  const uint32_t dim = update.dim;
  const bool fours = dim % 4 == 0;
  forEachFloat(update.count, fours ? dim / 4 : dim, [&](uint32_t row, uint32_t i) {
    float* const w = update.rows[row];
    for (uint32_t k = beginOf(update, row); k < update.ends[row]; ++k) {
      const Step& step = stepOf<Step>(update, k);
      const float* const g = update.gradients + uint64_t{k} * dim;
      if (fours) {
        stepFour(step, NoChange{}, 0, reinterpret_cast<Four*>(w) + i, reinterpret_cast<const Four*>(g)[i],
                 reinterpret_cast<Four*>(w + (1 + kSlots) * dim) + i...);
      } else {
        stepOne(step, NoChange{}, 0, w + i, g[i], w + (1 + kSlots) * dim + i...);
      }
    }
  });
}

/// The largest number of gradients of a row of a block, whose first row is `first`.
__device__ uint32_t turnsOf(const DeviceUpdate& update, uint64_t first) {
  uint32_t turns = 0;
  for (auto row = static_cast<uint32_t>(first); row < first + kRowsPerBlock && row < update.count; ++row) {
    const uint32_t gradients = update.ends[row] - beginOf(update, row);
    turns = turns > gradients ? turns : gradients;
  }
  return turns;
}

/// A row that kSquareLanes threads share, and its gradients from `begin` to `end`. Beyond the last row of the
/// update `w` is null, and there are no gradients.
struct SharedRow {
  __device__ SharedRow(const DeviceUpdate& update, uint64_t row)
      : number(static_cast<uint32_t>(row)),
        begin(row < update.count ? beginOf(update, number) : 0),
        end(row < update.count ? update.ends[number] : 0),
        w(row < update.count ? update.rows[number] : nullptr) {}

  const uint32_t number, begin, end;
  float* const w;
};

/// Steps of whole rows: kSquareLanes threads share a row. All threads of a block perform the same number of
/// turns, because they synchronize.
template <class Step>
__global__ void stepWholeRowsKernel(const DeviceUpdate update, const Step*) {
  __shared__ float sums[kThreadsPerBlock];
  __shared__ float factors[kRowsPerBlock];
  const uint32_t dim = update.dim;
  const uint32_t lane = threadIdx.x % kSquareLanes, own = threadIdx.x / kSquareLanes;
  for (uint64_t first = uint64_t{blockIdx.x} * kRowsPerBlock; first < update.count;
       first += uint64_t{gridDim.x} * kRowsPerBlock) {
    const SharedRow row(update, first + own);
    const uint32_t turns = turnsOf(update, first);
    for (uint32_t turn = 0; turn < turns; ++turn) {
      const bool steps = row.begin + turn < row.end;
      const float* const g = update.gradients + (uint64_t{row.begin} + turn) * dim;
      const Step& step = stepOf<Step>(update, row.begin + turn);
      float sum = 0;
      for (uint32_t i = lane; steps && i < dim; i += kSquareLanes) {
        const float value = step.gradient(row.w[i], g[i]);
        sum += value * value;
      }
      sums[threadIdx.x] = sum;
      __syncthreads();
      if (steps && lane == 0) {
        addSquareLanes(sums + threadIdx.x);
        float state = *update.rowSlots[row.number];
        factors[own] = step.factor(sums[threadIdx.x] / static_cast<float>(dim), state);
        *update.rowSlots[row.number] = state;
      }
      __syncthreads();
      for (uint32_t i = lane; steps && i < dim; i += kSquareLanes) {
        row.w[i] -= factors[own] * step.gradient(row.w[i], g[i]);
      }
    }
  }
}

/// What the threads of a block share while rows whose weights derive from their slots take steps.
struct DerivedShared {
  float sums[kThreadsPerBlock];
  float factors[kRowsPerBlock];
};

/// The factor of the row of the calling thread, of which `z` are the slots; null: the thread has no row. All
/// threads of a block call it. kSquareLanes threads share a row.
template <class Step, class Float>
__device__ float factorOf(const Step& step, uint32_t dim, Float* z, DerivedShared& shared) {
  const uint32_t lane = threadIdx.x % kSquareLanes, own = threadIdx.x / kSquareLanes;
  float sum = 0;
  for (uint32_t i = lane; z != nullptr && i < dim; i += kSquareLanes) {
    const float value = step.shrunk(z[i]);
    sum += value * value;
  }
  shared.sums[threadIdx.x] = sum;
  __syncthreads();
  if (z != nullptr && lane == 0) {
    addSquareLanes(shared.sums + threadIdx.x);
    shared.factors[own] = step.factor(shared.sums[threadIdx.x], dim);
  }
  __syncthreads();
  return shared.factors[own];
}

/// Corrects the weights of the rows of a block until they are those of the slots in memory; see settleOne().
/// `row`: the values of the calling thread's row; null: it has none.
template <class Step>
__device__ void settleRow(const Step& step, uint32_t dim, float* row, DerivedShared& shared) {
  __shared__ uint32_t wrong;
  const uint32_t lane = threadIdx.x % kSquareLanes;
  volatile float* const w = row;
  volatile float* const z = row == nullptr ? nullptr : row + dim;
  volatile float* const n = row == nullptr ? nullptr : row + 2 * dim;
  for (bool settled = false; !settled;) {
    if (threadIdx.x == 0) wrong = 0;
    __threadfence();
    __syncthreads();
    const float factor = factorOf(step, dim, z, shared);
    for (uint32_t i = lane; w != nullptr && i < dim; i += kSquareLanes) {
      const float weight = step.weight(z[i], n[i], factor);
      if (w[i] == weight || weight != weight) continue;
      w[i] = weight;
      wrong = 1;
    }
    __syncthreads();
    settled = wrong == 0;
    __syncthreads();
  }
}

/// Steps of rows whose weights derive from their slots: kSquareLanes threads share a row, as in
/// stepWholeRowsKernel().
template <class Step>
__global__ void stepDerivedRowsKernel(const DeviceUpdate update, const Step* steps) {
  __shared__ DerivedShared shared;
  const uint32_t dim = update.dim;
  const uint32_t lane = threadIdx.x % kSquareLanes, own = threadIdx.x / kSquareLanes;
  const Step& step = *steps;
  for (uint64_t first = uint64_t{blockIdx.x} * kRowsPerBlock; first < update.count;
       first += uint64_t{gridDim.x} * kRowsPerBlock) {
    const SharedRow row(update, first + own);
    const uint32_t turns = turnsOf(update, first);
    for (uint32_t turn = 0; turn < turns; ++turn) {
      const bool moves = row.begin + turn < row.end;
      float* const z = moves ? row.w + dim : nullptr;
      float* const n = moves ? row.w + 2 * dim : nullptr;
      const float* const g = update.gradients + (uint64_t{row.begin} + turn) * dim;
      const float before = factorOf(step, dim, z, shared);
      for (uint32_t i = lane; moves && i < dim; i += kSquareLanes) {
        float nextZ = z[i], nextN = n[i];
        step.add(step.weight(nextZ, nextN, before), g[i], nextZ, nextN);
        z[i] = nextZ;
        n[i] = nextN;
      }
      const float factor = factorOf(step, dim, z, shared);
      for (uint32_t i = lane; moves && i < dim; i += kSquareLanes) row.w[i] = step.weight(z[i], n[i], factor);
    }
    if constexpr (settles<Step>()) settleRow(step, dim, row.w, shared);
  }
}

/// Writes functors of one type to memory; functors of recent numbers are reused.
template <class Step>
class StepWriter {
 public:
  StepWriter(const Optimizer& optimizer, const UpdateScalars& scalars, std::byte* steps)
      : optimizer_(optimizer), scalars_(scalars), steps_(steps) {
    static_assert(std::is_trivially_copyable_v<Step> && sizeof(Step) <= StagedSteps::kStepBytesMax);
  }

  /// Index of the functor of the update number.
  uint32_t of(uint64_t number) {
    const size_t place = number % kKept;
    if (numbers_[place] == number) return indices_[place];
    UpdateScalars scalars = scalars_;
    scalars.number = number;
    scalars.before = 0;
    optimizer_.visitStep(scalars, [&]<class Other>(const Other& step) {
      if constexpr (std::is_same_v<Other, Step>) add(step);
    });
    numbers_[place] = number;
    return indices_[place] = count_ - 1;
  }
  void add(const Step& step) { std::memcpy(steps_ + sizeof(Step) * count_++, &step, sizeof(Step)); }
  uint64_t bytes() const { return sizeof(Step) * count_; }

 private:
  static constexpr size_t kKept = 64;

  const Optimizer& optimizer_;
  const UpdateScalars& scalars_;
  std::byte* const steps_;
  uint32_t count_ = 0;
  std::array<uint64_t, kKept> numbers_{};  // 0 is not a valid number
  std::array<uint32_t, kKept> indices_{};
};

}  // namespace

cudaError_t gatherOnDevice(const DevicePlane& plane, float* out, cudaStream_t stream) {
  cudaGetLastError();  // clears the error of an earlier call
  gatherRowsKernel<<<blocksFor(uint64_t{plane.count} * plane.width), kThreadsPerBlock, 0, stream>>>(plane,
                                                                                                    out);
  return cudaGetLastError();
}

cudaError_t scatterOnDevice(const DevicePlane& plane, const float* values, cudaStream_t stream) {
  cudaGetLastError();
  scatterRowsKernel<<<blocksFor(uint64_t{plane.count} * plane.width), kThreadsPerBlock, 0, stream>>>(plane,
                                                                                                     values);
  return cudaGetLastError();
}

cudaError_t fillPlaneOnDevice(const DevicePlane& plane, float value, cudaStream_t stream) {
  cudaGetLastError();
  fillRowsKernel<<<blocksFor(uint64_t{plane.count} * plane.width), kThreadsPerBlock, 0, stream>>>(plane,
                                                                                                  value);
  return cudaGetLastError();
}

cudaError_t fillInitialOnDevice(const DevicePlane& plane, const uint64_t* ids, const RowInitial& initial,
                                cudaStream_t stream) {
  cudaGetLastError();
  initialRowsKernel<<<blocksFor(uint64_t{plane.count} * plane.width), kThreadsPerBlock, 0, stream>>>(
      plane, ids, initial);
  return cudaGetLastError();
}

uint64_t StagedSteps::write(const Optimizer& optimizer, const RowUpdate& update,
                            std::span<const uint32_t> order, std::byte* steps, uint32_t* stepOf) {
  uint64_t bytes = 0;
  optimizer.visitStep(update.scalars, [&]<class Step>(const Step& step) {
    StepWriter<Step> writer(optimizer, update.scalars, steps);
    if (update.numbers.empty()) writer.add(step);
    for (size_t k = 0; k < order.size() && !update.numbers.empty(); ++k) {
      stepOf[k] = writer.of(update.numbers[order[k]]);
    }
    bytes = writer.bytes();
  });
  optimizer.visitRowStep(update.scalars, [&]<class Step>(const Step& step) {
    static_assert(std::is_trivially_copyable_v<Step> && sizeof(Step) <= kStepBytesMax);
    std::memcpy(steps, &step, sizeof(Step));
    bytes = sizeof(Step);
  });
  return bytes;
}

cudaError_t applyRowsOnDevice(const Optimizer& optimizer, const UpdateScalars& scalars,
                              const RowChange& change, const DeviceUpdate& update, cudaStream_t stream) {
  cudaGetLastError();
  if (!change.none()) {
    changeRowsKernel<<<blocksFor(uint64_t{update.gradientCount} * kSquareLanes), kThreadsPerBlock, 0,
                       stream>>>(change, update.gradients, update.gradientCount, update.dim);
  }
  optimizer.visitStep(scalars, [&]<class Step>(const Step&) {
    const uint32_t each = update.dim % 4 == 0 ? update.dim / 4 : update.dim;
    stepRowsKernel<<<blocksFor(uint64_t{update.count} * each), kThreadsPerBlock, 0, stream>>>(
        update, static_cast<const Step*>(nullptr), std::make_index_sequence<Step::kSlots>());
  });
  optimizer.visitRowStep(scalars, [&]<class Step>(const Step&) {
    const uint32_t blocks = blocksFor(uint64_t{update.count} * kSquareLanes);
    if constexpr (kDerivingStep<Step>) {
      stepDerivedRowsKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(update,
                                                                     static_cast<const Step*>(update.steps));
    } else {
      stepWholeRowsKernel<<<blocks, kThreadsPerBlock, 0, stream>>>(update, static_cast<const Step*>(nullptr));
    }
  });
  return cudaGetLastError();
}

}  // namespace psd
