// This file contains all of psd's intentional data races on dense parameters; row_loops.cc contains those on
// rows.
//
// Under Hogwild! (Niu, Recht, Ré, Wright 2011) threads update and read the same weights without a lock. In
// C++ that is undefined behavior unless each element is a std::atomic, but relaxed atomics prevent
// vectorization, which costs a factor of 2 (in memory) to 8 (in cache). These are therefore plain loops,
// which behave as intended on x86-64 and AArch64:
// - Each element is an aligned 4-byte float, and a vector access to it, aligned or not, reads and writes it
//   whole: no torn values.
// - A loop reads each element once and writes it once, with no call in between that could make the compiler
//   reload it, so the new value of an element derives from a value that it really had.
// - The values read affect only the values written; no index, pointer or branch depends on them.
//
// What is lost is one of two concurrent updates of the same element, as the algorithm assumes. Under a lock
// there is no race, and nothing is lost.
//
// Weights that are a function of the optimizer's slots (kDerivesWeights) must remain that function of the
// slots in memory, although of two steps one may store the last slots and the other the last weight.
// Therefore each step of UpdateScalars::races is followed by passes that read the slots again and correct
// weights that differ, until a pass finds none. Each pass begins with a full fence: the thread that makes the
// last store of an element, of a slot or of the weight, reads the final slots afterwards and would correct
// the weight.
//
// Hence no_sanitize("thread"), and copies by a loop, because ThreadSanitizer would instrument memcpy. The
// file is compiled with -ffp-contract=off: a fused multiply-add rounds once instead of twice, so results
// would depend on the processor and differ from the CUDA backend's.

#include "server/store/cpu/racy_loops.h"

#include <algorithm>
#include <utility>

#include "server/store/cpu/full_fence.h"

#define PSD_RACY __attribute__((no_sanitize("thread")))
#define PSD_RACY_INLINE PSD_RACY __attribute__((always_inline)) inline

namespace psd {
namespace {

/// The pointers must not overlap; there are Step::kSlots `slots`.
template <class Step, class... Slots>
PSD_RACY_INLINE void stepLoop(const Step step, uint64_t n, float* __restrict w, const float* __restrict g,
                              Slots* __restrict... slots) {
  for (uint64_t i = 0; i < n; ++i) {
    float values[] = {slots[i]..., 0.f};  // the last element only keeps the array non-empty
    float weight = w[i];
    step(weight, g[i], values);
    w[i] = weight;
    [[maybe_unused]] uint32_t slot = 0;
    ((slots[i] = values[slot++]), ...);
  }
}

/// Corrects each weight that differs from that of the slots in memory, until none does. The pointers are not
/// __restrict: others write the same elements meanwhile. NaN, which equals nothing, is left.
template <class Step, class... Slots>
PSD_RACY_INLINE void settleLoop(const Step step, uint64_t n, float* w, const Slots*... slots) {
  for (;;) {
    fullFence();
    uint32_t wrong = 0;
    for (uint64_t i = 0; i < n; ++i) {
      const float values[] = {slots[i]...};
      const float weight = step.weight(values);
      wrong |= static_cast<uint32_t>(w[i] != weight) & static_cast<uint32_t>(weight == weight);
    }
    if (wrong == 0) return;
    for (uint64_t i = 0; i < n; ++i) {
      const float values[] = {slots[i]...};
      w[i] = step.weight(values);
    }
  }
}

template <class Step, class... Slots>
PSD_RACY_INLINE void applyLoop(const Step& step, uint64_t n, float* w, const float* g, Slots*... slots) {
  if constexpr (settles<Step>()) {
    constexpr uint64_t kAtOnce = 2048;  // the second pass finds the elements in the L1 cache
    for (uint64_t begin = 0; begin < n; begin += kAtOnce) {
      const uint64_t some = std::min(kAtOnce, n - begin);
      stepLoop(step, some, w + begin, g + begin, slots + begin...);
      settleLoop(step, some, w + begin, slots + begin...);
    }
  } else {
    stepLoop(step, n, w, g, slots...);
  }
}

template <class Step>
PSD_RACY void scatterLoop(const Step step, uint64_t n, const uint32_t* places, const float* g, float* w) {
  for (uint64_t i = 0; i < n; ++i) {
    float weight = w[places[i]];
    step(weight, g[i], nullptr);
    w[places[i]] = weight;
  }
}

/// Arguments of racyChange().
struct Change {
  ElementChange element;
  uint64_t n;
  const float* w;
  const float* pulled;
  float* meanSquare;
  float* g;
};

PSD_RACY_INLINE void changeLoop(const Change& change) {
  const ElementChange element = change.element;
  const float* __restrict w = change.w, * __restrict pulled = change.pulled;
  float* __restrict meanSquare = change.meanSquare, * __restrict g = change.g;
  for (uint64_t i = 0; i < change.n; ++i) g[i] = element.clipped(g[i]);
  if (meanSquare != nullptr) {
    for (uint64_t i = 0; i < change.n; ++i) {
      float square = meanSquare[i];
      g[i] = element.compensatedAdaptively(g[i], w[i], pulled[i], square);
      meanSquare[i] = square;
    }
  } else if (pulled != nullptr) {
    for (uint64_t i = 0; i < change.n; ++i) g[i] = element.compensated(g[i], w[i], pulled[i]);
  }
}

PSD_RACY_INLINE void copyLoop(uint64_t n, const float* __restrict from, float* __restrict to) {
  for (uint64_t i = 0; i < n; ++i) to[i] = from[i];
}

// Each loop is compiled for each instruction set, so that one binary runs on any processor and uses its best
// instructions. Spelled out instead of using target_clones, whose resolvers run before sanitizers are
// initialized.

struct Baseline {
  template <class Step, class... Slots>
  PSD_RACY static void run(const Step& step, uint64_t n, float* w, const float* g, Slots*... slots) {
    applyLoop(step, n, w, g, slots...);
  }
  PSD_RACY static void change(const Change& change) { changeLoop(change); }
};

#if defined(__x86_64__)
struct Avx2 {
  PSD_RACY __attribute__((target("avx2"))) static void change(const Change& change) { changeLoop(change); }
  template <class Step, class... Slots>
  PSD_RACY __attribute__((target("avx2"))) static void run(const Step& step, uint64_t n, float* w,
                                                           const float* g, Slots*... slots) {
    applyLoop(step, n, w, g, slots...);
  }
};

struct Avx512 {
  PSD_RACY __attribute__((target("avx512f"))) static void change(const Change& change) { changeLoop(change); }
  template <class Step, class... Slots>
  PSD_RACY __attribute__((target("avx512f"))) static void run(const Step& step, uint64_t n, float* w,
                                                              const float* g, Slots*... slots) {
    applyLoop(step, n, w, g, slots...);
  }
};
#endif

/// Arguments of racyApply().
struct Slice {
  uint64_t offset, n;
  float* w;
  const float* g;
  std::span<float* const> slots;
};

template <class InstructionSet, class Step, size_t... kSlots>
void runStep(const Step& step, const Slice& slice, std::index_sequence<kSlots...>) {
  InstructionSet::run(step, slice.n, slice.w + slice.offset, slice.g, slice.slots[kSlots] + slice.offset...);
}

template <class InstructionSet>
void applyWith(const Optimizer& optimizer, const UpdateScalars& update, const Slice& slice) {
  optimizer.visitStep(update, [&]<class Step>(const Step& step) {
    runStep<InstructionSet>(step, slice, std::make_index_sequence<Step::kSlots>());
  });
}

/// The loops of one instruction set.
struct Loops {
  void (*apply)(const Optimizer&, const UpdateScalars&, const Slice&);
  void (*change)(const Change&);
};

template <class InstructionSet>
constexpr Loops kLoopsOf{applyWith<InstructionSet>, InstructionSet::change};

Loops bestLoops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return kLoopsOf<Avx512>;
  if (__builtin_cpu_supports("avx2")) return kLoopsOf<Avx2>;
#endif
  return kLoopsOf<Baseline>;
}

const Loops& loops() {
  static const Loops best = bestLoops();
  return best;
}

}  // namespace

void racyApply(const Optimizer& optimizer, const UpdateScalars& update, uint64_t offset, uint64_t n, float* w,
               const float* g, std::span<float* const> slots) {
  forEachStep(update, offset, n, [&](const UpdateScalars& run, uint64_t begin, uint64_t count) {
    loops().apply(optimizer, run, {begin, count, w, g + (begin - offset), slots});
  });
}

void racyChange(const ElementChange& change, uint64_t n, const float* w, const float* pulled,
                float* meanSquare, float* g) {
  loops().change({change, n, w, pulled, meanSquare, g});
}

void racyApplyAt(const Optimizer& optimizer, const UpdateScalars& update, uint64_t n, const uint32_t* places,
                 const float* g, float* w) {
  optimizer.visitStep(update, [&]<class Step>(const Step& step) {
    if constexpr (Step::kSlots == 0) scatterLoop(step, n, places, g, w);
  });
}

PSD_RACY void racyCopy(uint64_t n, const float* from, float* to) { copyLoop(n, from, to); }

}  // namespace psd
