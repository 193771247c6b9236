// Each loop is compiled for several instruction sets, like those in racy_loops.cc, and with
// -ffp-contract=off, so that results depend neither on the processor nor on the device.

#include "server/store/cpu/combine_loops.h"

#include <algorithm>
#include <cstring>

#define PSD_INLINE __attribute__((always_inline)) inline

namespace psd {
namespace {

// Elements of each gradient in a tile: 16 KiB for 64 gradients, which fits the L1 cache.
constexpr uint64_t kTileElements = 64;
// Elements of each gradient per block of distances or products: 128 KiB for 64 gradients, which fits the L2
// cache.
constexpr uint64_t kDistanceElements = 512;
constexpr uint64_t kLanes = 16;

PSD_INLINE void scaleLoop(uint64_t n, float weight, const float* __restrict from, float* __restrict to) {
  for (uint64_t i = 0; i < n; ++i) to[i] = weight * from[i];
}

PSD_INLINE void addScaledLoop(uint64_t n, float weight, const float* __restrict from, float* __restrict to) {
  for (uint64_t i = 0; i < n; ++i) to[i] += weight * from[i];
}

/// `tile`: one row of kTileElements per gradient. Sorts the columns; out = mean of rows first … last − 1.
/// Sums are in double: sums of floats cannot overflow there, and the mean is in the range of the values.
PSD_INLINE void sortTileLoop(std::span<const Comparator> network, float* __restrict tile, uint32_t first,
                             uint32_t last, float* __restrict out) {
  for (const Comparator comparator : network) {
    float* __restrict low = tile + comparator.low * kTileElements;
    float* __restrict high = tile + comparator.high * kTileElements;
    for (uint64_t i = 0; i < kTileElements; ++i) {
      const float a = low[i], b = high[i];
      low[i] = a < b ? a : b;
      high[i] = a < b ? b : a;
    }
  }
  const auto kept = static_cast<double>(last - first);
  double sums[kTileElements];
  for (uint64_t i = 0; i < kTileElements; ++i) sums[i] = tile[first * kTileElements + i];
  for (uint32_t row = first + 1; row < last; ++row) {
    for (uint64_t i = 0; i < kTileElements; ++i) sums[i] += tile[row * kTileElements + i];
  }
  for (uint64_t i = 0; i < kTileElements; ++i) out[i] = static_cast<float>(sums[i] / kept);
}

/// n: a multiple of kLanes, at most kDistanceElements. sums[0 … kLanes) = partial sums of Σ (a − b)².
PSD_INLINE void distanceLoop(uint64_t n, const float* __restrict a, const float* __restrict b,
                             float* __restrict sums) {
  float parts[kLanes] = {};
  for (uint64_t i = 0; i < n; i += kLanes) {
    for (uint64_t lane = 0; lane < kLanes; ++lane) {
      const float difference = a[i + lane] - b[i + lane];
      parts[lane] += difference * difference;
    }
  }
  for (uint64_t lane = 0; lane < kLanes; ++lane) sums[lane] = parts[lane];
}

/// n: a multiple of kLanes. sums[0 … kLanes) += partial sums of a · b; the product of two floats is exact in
/// double.
PSD_INLINE void productLoop(uint64_t n, const float* __restrict a, const float* __restrict b,
                            double* __restrict sums) {
  double parts[kLanes];
  for (uint64_t lane = 0; lane < kLanes; ++lane) parts[lane] = sums[lane];
  for (uint64_t i = 0; i < n; i += kLanes) {
    for (uint64_t lane = 0; lane < kLanes; ++lane) {
      parts[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (uint64_t lane = 0; lane < kLanes; ++lane) sums[lane] = parts[lane];
}

/// The loops of one instruction set.
struct Loops {
  void (*scale)(uint64_t n, float weight, const float* from, float* to);
  void (*addScaled)(uint64_t n, float weight, const float* from, float* to);
  void (*sortTile)(std::span<const Comparator> network, float* tile, uint32_t first, uint32_t last,
                   float* out);
  void (*distance)(uint64_t n, const float* a, const float* b, float* sums);
  void (*product)(uint64_t n, const float* a, const float* b, double* sums);
};

// The functions of one instruction set.
#define PSD_LOOPS(Name, ...)                                                                           \
  struct Name {                                                                                        \
    __VA_ARGS__ static void scale(uint64_t n, float weight, const float* from, float* to) {            \
      scaleLoop(n, weight, from, to);                                                                  \
    }                                                                                                  \
    __VA_ARGS__ static void addScaled(uint64_t n, float weight, const float* from, float* to) {        \
      addScaledLoop(n, weight, from, to);                                                              \
    }                                                                                                  \
    __VA_ARGS__ static void sortTile(std::span<const Comparator> network, float* tile, uint32_t first, \
                                     uint32_t last, float* out) {                                      \
      sortTileLoop(network, tile, first, last, out);                                                   \
    }                                                                                                  \
    __VA_ARGS__ static void distance(uint64_t n, const float* a, const float* b, float* sums) {        \
      distanceLoop(n, a, b, sums);                                                                     \
    }                                                                                                  \
    __VA_ARGS__ static void product(uint64_t n, const float* a, const float* b, double* sums) {        \
      productLoop(n, a, b, sums);                                                                      \
    }                                                                                                  \
    static constexpr Loops kAll{scale, addScaled, sortTile, distance, product};                        \
  };

PSD_LOOPS(Baseline)
#if defined(__x86_64__)
PSD_LOOPS(Avx2, __attribute__((target("avx2"))))
PSD_LOOPS(Avx512, __attribute__((target("avx512f"))))
#endif

const Loops& loops() {
  static const Loops& best = []() -> const Loops& {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return Avx512::kAll;
    if (__builtin_cpu_supports("avx2")) return Avx2::kAll;
#endif
    return Baseline::kAll;
  }();
  return best;
}

double sumOf(const float (&parts)[kLanes]) {
  double sum = 0;
  for (const float part : parts) sum += part;
  return sum;
}

}  // namespace

Combiner::Combiner(std::span<const StagedGradient> gradients, const Combination& combination)
    : gradients_(gradients), combination_(combination) {
  if (combination.kind != Combination::Kind::trimmedMean) return;
  const auto count = static_cast<uint32_t>(gradients.size());
  network_ = selectionNetwork(count, combination.trim, count - combination.trim);
  tile_.resize(count * kTileElements);
}

void Combiner::combine(uint64_t offset, uint64_t count, float* out) {
  if (combination_.kind == Combination::Kind::trimmedMean) return trimmedMean(offset, count, out);
  combination_.forEachWeights(offset, count,
                              [&](std::span<const float> weights, uint64_t from, uint64_t some) {
                                weightedSum(weights, from, some, out + (from - offset));
                              });
}

void Combiner::weightedSum(std::span<const float> weights, uint64_t offset, uint64_t count,
                           float* out) const {
  bool begun = false;
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const float weight = weights[i];
    if (weight == 0.f) continue;
    (begun ? loops().addScaled : loops().scale)(count, weight, gradients_[i].values.data() + offset, out);
    begun = true;
  }
  if (!begun) std::fill_n(out, count, 0.f);
}

void Combiner::trimmedMean(uint64_t offset, uint64_t count, float* out) {
  const auto rows = static_cast<uint32_t>(gradients_.size());
  alignas(64) float result[kTileElements];
  for (uint64_t begin = 0; begin < count; begin += kTileElements) {
    const uint64_t some = std::min(kTileElements, count - begin);
    for (uint32_t row = 0; row < rows; ++row) {
      std::memcpy(&tile_[row * kTileElements], gradients_[row].values.data() + offset + begin,
                  some * sizeof(float));
    }
    loops().sortTile(network_, tile_.data(), combination_.trim, rows - combination_.trim, result);
    std::memcpy(out + begin, result, some * sizeof(float));
  }
}

SquaredDistances squaredDistances(std::span<const StagedGradient> gradients) {
  SquaredDistances distances(gradients.size());
  const uint64_t length = gradients.empty() ? 0 : gradients[0].values.size();
  for (uint64_t begin = 0; begin < length; begin += kDistanceElements) {
    const uint64_t some = std::min(kDistanceElements, length - begin);
    const uint64_t whole = some / kLanes * kLanes;
    double* pair = distances.pairs().data();
    for (size_t i = 0; i < gradients.size(); ++i) {
      const float* a = gradients[i].values.data() + begin;
      for (size_t j = i + 1; j < gradients.size(); ++j, ++pair) {
        const float* b = gradients[j].values.data() + begin;
        float parts[kLanes];
        loops().distance(whole, a, b, parts);
        for (uint64_t rest = whole; rest < some; ++rest) {
          const float difference = a[rest] - b[rest];
          parts[rest - whole] += difference * difference;
        }
        *pair += sumOf(parts);
      }
    }
  }
  return distances;
}

void addProducts(std::span<const StagedGradient> gradients, uint64_t offset, uint64_t count,
                 InnerProducts& sums) {
  static_assert(InnerProducts::kLanes == kLanes);
  for (uint64_t begin = 0; begin < count; begin += kDistanceElements) {
    const uint64_t some = std::min(kDistanceElements, count - begin);
    const uint64_t whole = some / kLanes * kLanes;
    double* lanes = sums.lanes().data();
    for (size_t i = 0; i < gradients.size(); ++i) {
      const float* a = gradients[i].values.data() + offset + begin;
      for (size_t j = i; j < gradients.size(); ++j, lanes += kLanes) {
        const float* b = gradients[j].values.data() + offset + begin;
        loops().product(whole, a, b, lanes);
        for (uint64_t rest = whole; rest < some; ++rest) {
          lanes[rest - whole] += static_cast<double>(a[rest]) * static_cast<double>(b[rest]);
        }
      }
    }
  }
}

}  // namespace psd
