// Compiled with -ffp-contract=off: a fused multiply-add rounds once instead of twice, and the bits would
// depend on the processor.

#include "common/types/row_initial.h"

#include <algorithm>

#include "common/types/row_initial_values.h"

namespace psd {
namespace {

#define PSD_ROW_INLINE __attribute__((always_inline)) inline

PSD_ROW_INLINE void fillUniform(RowKey key, float scale, float* row, uint32_t count) {
  const float step = uniformRowStep(scale);
  for (uint32_t i = 0; i < count; ++i) row[i] = uniformRowValue(key, i, step, scale);
}

PSD_ROW_INLINE void fillNormal(RowKey key, float scale, float* row, uint32_t count) {
  const float step = normalRowStep(scale);
  for (uint32_t i = 0; i < count; ++i) row[i] = normalRowValue(key, i, step);
}

// Compiled once per instruction set: one binary runs on any processor and uses what it supports.
struct Fillers {
  void (*uniform)(RowKey key, float scale, float* row, uint32_t count);
  void (*normal)(RowKey key, float scale, float* row, uint32_t count);
};

#define PSD_FILLERS(Name, ...)                                                             \
  struct Name {                                                                            \
    __VA_ARGS__ static void uniform(RowKey key, float scale, float* row, uint32_t count) { \
      fillUniform(key, scale, row, count);                                                 \
    }                                                                                      \
    __VA_ARGS__ static void normal(RowKey key, float scale, float* row, uint32_t count) {  \
      fillNormal(key, scale, row, count);                                                  \
    }                                                                                      \
    static constexpr Fillers kAll{uniform, normal};                                        \
  };

PSD_FILLERS(AnyProcessor)
#if defined(__x86_64__)
PSD_FILLERS(WithAvx2, __attribute__((target("avx2"))))
PSD_FILLERS(WithAvx512, __attribute__((target("avx512f,avx512dq"))))
#endif

const Fillers& fillers() {
  static const Fillers& best = []() -> const Fillers& {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return WithAvx512::kAll;
    if (__builtin_cpu_supports("avx2")) return WithAvx2::kAll;
#endif
    return AnyProcessor::kAll;
  }();
  return best;
}

}  // namespace

void RowInitial::fill(uint64_t id, std::span<float> row) const {
  const RowKey key = rowKey(seed, id);
  const auto count = static_cast<uint32_t>(row.size());
  switch (kind) {
    case Kind::zero: std::fill(row.begin(), row.end(), 0.f); return;
    case Kind::uniform: return fillers().uniform(key, scale, row.data(), count);
    case Kind::normal: return fillers().normal(key, scale, row.data(), count);
  }
}

}  // namespace psd
