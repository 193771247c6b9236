// The data races on embedding rows. Those on dense parameters are in server/store/cpu/racy_loops.cc, which
// explains why plain loops behave as intended and why this file too is compiled with -ffp-contract=off and
// without memcpy in place of loops.
//
// Under Hogwild! several threads may read and update a row concurrently. Each element is read and written
// whole, and only values depend on the values read: the caller determines which rows exist, and where.
// Weights that derive from the slots are corrected as in racy_loops.cc, after the steps of all rows of a
// call.

#include "server/store/rows/cpu/row_loops.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "server/store/cpu/full_fence.h"
#include "server/store/gradient_change.h"
#include "server/store/rows/row_squares.h"

#define PSD_ROWS_RACY __attribute__((no_sanitize("thread")))
#define PSD_ROWS_LAMBDA __attribute__((no_sanitize("thread"), always_inline))
#define PSD_ROWS_INLINE PSD_ROWS_LAMBDA inline

namespace psd {
namespace {

/// Arguments of racyApplyRows().
struct Job {
  const Optimizer& optimizer;
  const RowUpdate& update;
  const RowLayout& layout;
  const RowArena::Places& places;
  std::span<const uint32_t> rows;
  const float* gradients;
  std::span<const uint32_t> next;
};

/// Prefetches the first floats of a row; beyond kPrefetchFloats the hardware prefetcher takes over.
PSD_ROWS_INLINE void prefetchRow(const RowArena::Places& places, uint32_t floats, uint32_t row) {
  constexpr uint32_t kPrefetchFloats = 16 * RowLayout::kLineFloats;
  if (row == kNoRow) return;
  const float* const place = places.row(row);
  for (uint32_t at = 0; at < std::min(floats, kPrefetchFloats); at += RowLayout::kLineFloats) {
    __builtin_prefetch(place + at);
  }
}

PSD_ROWS_INLINE void copyRow(uint64_t n, const float* __restrict from, float* __restrict to) {
  for (uint64_t i = 0; i < n; ++i) to[i] = from[i];
}

PSD_ROWS_INLINE void gatherLoop(const RowArena::Places& places, uint32_t dim, std::span<const uint32_t> rows,
                                float* out, std::span<const uint32_t> next) {
  for (size_t i = 0; i < rows.size(); ++i, out += dim) {
    if (i < next.size()) prefetchRow(places, dim, next[i]);
    if (rows[i] != kNoRow) copyRow(dim, places.row(rows[i]), out);
  }
}

/// Σ of(i)².
template <class Of>
PSD_ROWS_INLINE float squareSum(uint32_t n, const Of& of) {
  constexpr uint32_t kLanes = kSquareLanes;
  float sums[kLanes] = {};
  const uint32_t whole = n / kLanes * kLanes;
  for (uint32_t begin = 0; begin < whole; begin += kLanes) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const float value = of(begin + lane);
      sums[lane] += value * value;
    }
  }
  for (uint32_t i = whole; i < n; ++i) sums[i - whole] += of(i) * of(i);
  addSquareLanes(sums);
  return sums[0];
}

/// Applies a RowChange to the gradient of a row.
PSD_ROWS_INLINE void changeRow(const RowChange& change, uint32_t n, const float* __restrict from,
                               float* __restrict to) {
  const ElementChange element{change.scale, change.limit, 0};
  for (uint32_t i = 0; i < n; ++i) to[i] = element.clipped(from[i]);
  if (change.rowNorm == std::numeric_limits<float>::infinity()) return;
  const float square = squareSum(n, [&](uint32_t i) PSD_ROWS_LAMBDA { return to[i]; });
  const float norm = sqrtf(square);
  if (!(norm > change.rowNorm)) return;
  const float factor = change.rowNorm / norm;
  for (uint32_t i = 0; i < n; ++i) to[i] *= factor;
}

/// One step for a row; the pointers must not overlap.
template <class Step, class... Slots>
PSD_ROWS_INLINE void stepRow(const Step& step, uint32_t dim, float* __restrict w, const float* __restrict g,
                             Slots* __restrict... slots) {
  for (uint32_t i = 0; i < dim; ++i) {
    float values[] = {slots[i]..., 0.f};  // the last element only keeps the array non-empty
    float weight = w[i];
    step(weight, g[i], values);
    w[i] = weight;
    [[maybe_unused]] uint32_t slot = 0;
    ((slots[i] = values[slot++]), ...);
  }
}

/// The slots follow the values.
template <class Step, size_t... kSlots>
PSD_ROWS_INLINE void stepRowAt(const Step step, uint32_t dim, float* row, const float* g,
                               std::index_sequence<kSlots...>) {
  stepRow(step, dim, row, g, row + (1 + kSlots) * dim...);
}

/// Cache of the step functors of recent update numbers: rows with the same number of updates share a functor,
/// and computing Adam's takes two powers.
template <class Step>
class Steps {
 public:
  PSD_ROWS_RACY Steps(const Optimizer& optimizer, const UpdateScalars& update)
      : optimizer_(optimizer), update_(update) {}
  PSD_ROWS_RACY const Step& of(uint64_t number) {
    const size_t place = number % kKept;
    if (numbers_[place] != number) make(place, number);
    return steps_[place];
  }

 private:
  static constexpr size_t kKept = 64;

  __attribute__((noinline)) void make(size_t place, uint64_t number) {
    UpdateScalars update = update_;
    update.number = number;
    update.before = 0;
    optimizer_.visitStep(update, [&]<class Other>(const Other& step) {
      if constexpr (std::is_same_v<Other, Step>) steps_[place] = step;
    });
    numbers_[place] = number;
  }

  const Optimizer& optimizer_;
  const UpdateScalars& update_;
  std::array<uint64_t, kKept> numbers_{};  // 0 is not a valid number
  std::array<Step, kKept> steps_;
};

/// Address of the row's slot with one float per row.
PSD_ROWS_INLINE float* rowSlotOf(const Job& job, uint32_t row) {
  return job.places.chunk(row) + job.layout.planeBegin(1) + job.places.inChunk(row);
}

/// Calls apply(i, row, gradient) for each existing row, in order.
template <class Apply>
PSD_ROWS_INLINE void forEachRow(const Job& job, const Apply& apply) {
  const uint32_t dim = job.layout.dim();
  const bool changes = !job.update.change.none();
  std::array<float, RowLayout::kDimMax> changed;
  for (size_t i = 0; i < job.rows.size(); ++i) {
    if (i < job.next.size()) {
      prefetchRow(job.places, job.layout.rowFloats(), job.next[i]);
      if (job.layout.hasRowSlots() && job.next[i] != kNoRow)
        __builtin_prefetch(rowSlotOf(job, job.next[i]), 1);
    }
    if (job.rows[i] == kNoRow) continue;
    const float* g = job.gradients + i * dim;
    if (changes) {
      changeRow(job.update.change, dim, g, changed.data());
      g = changed.data();
    }
    apply(i, job.rows[i], g);
  }
}

/// Corrects the values of a row that differ from weightAt(i); returns whether there were any.
template <class WeightAt>
PSD_ROWS_INLINE bool correctRow(uint32_t dim, float* w, const WeightAt& weightAt) {
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < dim; ++i) {
    const float weight = weightAt(i);
    wrong |= static_cast<uint32_t>(w[i] != weight) & static_cast<uint32_t>(weight == weight);
  }
  if (wrong == 0) return false;
  for (uint32_t i = 0; i < dim; ++i) w[i] = weightAt(i);
  return true;
}

/// Calls correct(row) for the rows until it returns false for all of them.
template <class Correct>
PSD_ROWS_INLINE void settleRows(const Job& job, const Correct& correct) {
  for (bool wrong = true; wrong;) {
    fullFence();
    wrong = false;
    for (const uint32_t row : job.rows) {
      if (row != kNoRow && correct(job.places.row(row))) wrong = true;
    }
  }
}

template <class Step, size_t... kSlots>
PSD_ROWS_INLINE void settle(const Job& job, const Step& step, std::index_sequence<kSlots...>) {
  const uint32_t dim = job.layout.dim();
  settleRows(job, [&](float* w) PSD_ROWS_LAMBDA {
    return correctRow(dim, w, [&](uint32_t i) PSD_ROWS_LAMBDA {
      const float values[] = {w[(1 + kSlots) * dim + i]...};
      return step.weight(values);
    });
  });
}

template <class Step>
PSD_ROWS_INLINE void stepRows(const Job& job, const Step& step) {
  constexpr auto kSlots = std::make_index_sequence<Step::kSlots>();
  const uint32_t dim = job.layout.dim();
  if (job.update.numbers.empty()) {
    forEachRow(job, [&](size_t, uint32_t row, const float* g)
                        PSD_ROWS_LAMBDA { stepRowAt(step, dim, job.places.row(row), g, kSlots); });
    return;
  }
  Steps<Step> steps(job.optimizer, job.update.scalars);
  forEachRow(job, [&](size_t i, uint32_t row, const float* g) PSD_ROWS_LAMBDA {
    stepRowAt(steps.of(job.update.numbers[i]), dim, job.places.row(row), g, kSlots);
  });
}

template <class Step>
PSD_ROWS_INLINE void applyLoop(const Job& job, const Step& step) {
  stepRows(job, step);
  if constexpr (settles<Step>()) settle(job, step, std::make_index_sequence<Step::kSlots>());
}

template <class Step>
PSD_ROWS_INLINE void stepWholeRows(const Job& job, const Step& step) {
  static_assert(Step::kRowSlots == 1);
  const uint32_t dim = job.layout.dim();
  forEachRow(job, [&](size_t, uint32_t row, const float* g) PSD_ROWS_LAMBDA {
    float* const w = job.places.row(row);
    float* const slot = rowSlotOf(job, row);
    const float square =
        squareSum(dim, [&](uint32_t i) PSD_ROWS_LAMBDA { return step.gradient(w[i], g[i]); });
    float state = *slot;
    const float factor = step.factor(square / static_cast<float>(dim), state);
    *slot = state;
    for (uint32_t i = 0; i < dim; ++i) w[i] -= factor * step.gradient(w[i], g[i]);
  });
}

/// A row whose weights derive from its slots z and n, which follow the values.
struct DerivedRow {
  float *w, *z, *n;

  PSD_ROWS_INLINE DerivedRow(float* row, uint32_t dim) : w(row), z(row + dim), n(row + uint64_t{2} * dim) {}
  template <class Step>
  PSD_ROWS_INLINE float factor(const Step& step, uint32_t dim) const {
    return step.factor(squareSum(dim, [&](uint32_t i) PSD_ROWS_LAMBDA { return step.shrunk(z[i]); }), dim);
  }
};

template <class Step>
PSD_ROWS_INLINE void stepDerivedRow(const Step& step, uint32_t dim, const DerivedRow& row, const float* g) {
  const float before = row.factor(step, dim);
  for (uint32_t i = 0; i < dim; ++i) {
    float z = row.z[i], n = row.n[i];
    step.add(step.weight(z, n, before), g[i], z, n);
    row.z[i] = z;
    row.n[i] = n;
  }
  const float after = row.factor(step, dim);
  for (uint32_t i = 0; i < dim; ++i) row.w[i] = step.weight(row.z[i], row.n[i], after);
}

template <class Step>
PSD_ROWS_INLINE void stepDerivedRows(const Job& job, const Step& step) {
  const uint32_t dim = job.layout.dim();
  forEachRow(job, [&](size_t, uint32_t row, const float* g) PSD_ROWS_LAMBDA {
    stepDerivedRow(step, dim, DerivedRow(job.places.row(row), dim), g);
  });
  if constexpr (settles<Step>()) {
    settleRows(job, [&](float* at) PSD_ROWS_LAMBDA {
      const DerivedRow row(at, dim);
      const float factor = row.factor(step, dim);
      return correctRow(dim, row.w,
                        [&](uint32_t i) PSD_ROWS_LAMBDA { return step.weight(row.z[i], row.n[i], factor); });
    });
  }
}

template <class Step>
PSD_ROWS_INLINE void applyRowStepLoop(const Job& job, const Step& step) {
  if constexpr (kDerivingStep<Step>) {
    stepDerivedRows(job, step);
  } else {
    stepWholeRows(job, step);
  }
}

// Each loop is compiled for each instruction set, as in racy_loops.cc.
#define PSD_ROW_LOOPS(Name, ...)                                                               \
  struct Name {                                                                                \
    PSD_ROWS_RACY __VA_ARGS__ static void gather(const RowArena::Places& places, uint32_t dim, \
                                                 std::span<const uint32_t> rows, float* out,   \
                                                 std::span<const uint32_t> next) {             \
      gatherLoop(places, dim, rows, out, next);                                                \
    }                                                                                          \
    PSD_ROWS_RACY __VA_ARGS__ static void copy(uint64_t n, const float* from, float* to) {     \
      copyRow(n, from, to);                                                                    \
    }                                                                                          \
    template <class Step>                                                                      \
    PSD_ROWS_RACY __VA_ARGS__ static void run(const Job& job, const Step& step) {              \
      applyLoop(job, step);                                                                    \
    }                                                                                          \
    template <class Step>                                                                      \
    PSD_ROWS_RACY __VA_ARGS__ static void runRowStep(const Job& job, const Step& step) {       \
      applyRowStepLoop(job, step);                                                             \
    }                                                                                          \
  };

PSD_ROW_LOOPS(AnyRows)
#if defined(__x86_64__)
PSD_ROW_LOOPS(Avx2Rows, __attribute__((target("avx2"))))
PSD_ROW_LOOPS(Avx512Rows, __attribute__((target("avx512f"))))
#endif

template <class InstructionSet>
void applyWith(const Job& job) {
  const UpdateScalars& update = job.update.scalars;
  if (job.optimizer.rowsOnly()) {
    job.optimizer.visitRowStep(update,
                               [&]<class Step>(const Step& step) { InstructionSet::runRowStep(job, step); });
  } else {
    job.optimizer.visitStep(update, [&]<class Step>(const Step& step) { InstructionSet::run(job, step); });
  }
}

/// The loops of one instruction set.
struct RowLoops {
  void (*gather)(const RowArena::Places&, uint32_t, std::span<const uint32_t>, float*,
                 std::span<const uint32_t>);
  void (*copy)(uint64_t, const float*, float*);
  void (*apply)(const Job&);
};

template <class InstructionSet>
constexpr RowLoops kRowLoopsOf{InstructionSet::gather, InstructionSet::copy, applyWith<InstructionSet>};

const RowLoops& rowLoops() {
  static const RowLoops best = [] {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return kRowLoopsOf<Avx512Rows>;
    if (__builtin_cpu_supports("avx2")) return kRowLoopsOf<Avx2Rows>;
#endif
    return kRowLoopsOf<AnyRows>;
  }();
  return best;
}

}  // namespace

void racyGatherRows(const RowArena::Places& places, uint32_t dim, std::span<const uint32_t> rows, float* out,
                    std::span<const uint32_t> next) {
  rowLoops().gather(places, dim, rows, out, next);
}

void racyApplyRows(const Optimizer& optimizer, const RowUpdate& update, const RowLayout& layout,
                   const RowArena::Places& places, std::span<const uint32_t> rows, const float* gradients,
                   std::span<const uint32_t> next) {
  rowLoops().apply({optimizer, update, layout, places, rows, gradients, next});
}

void racyCopyRow(uint64_t n, const float* from, float* to) { rowLoops().copy(n, from, to); }

}  // namespace psd
