#pragma once

namespace psd {

/// Goes between the parameters and the body of a lambda passed to withBestInstructions(), and before a
/// function that it calls.
#define PSD_BEST_INSTRUCTIONS __attribute__((always_inline))

#if defined(__x86_64__)
#define PSD_TARGET_AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt")))
#define PSD_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,popcnt,lzcnt")))
#endif

enum class InstructionSet { baseline, avx2, avx512 };

/// The best of this processor (docs/internals/decisions/0008-instruction-sets.md).
inline InstructionSet bestInstructions() {
#if defined(__x86_64__)
  static const InstructionSet best = [] {
    const bool bits = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                      __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("avx2");
    if (bits && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return InstructionSet::avx512;
    }
    return bits ? InstructionSet::avx2 : InstructionSet::baseline;
  }();
  return best;
#else
  return InstructionSet::baseline;
#endif
}

#if defined(__x86_64__)
template <class Loop>
PSD_TARGET_AVX2 auto runWithAvx2Bits(const Loop& loop) {
  return loop();
}
template <class Loop>
PSD_TARGET_AVX512 auto runWithAvx512(const Loop& loop) {
  return loop();
}
#endif

/// Runs `loop`, which is compiled for each instruction set; all give equal results. The lambda must capture
/// by value and accumulate in local variables, as for vectorised().
template <class Loop>
auto withBestInstructions(const Loop& loop, InstructionSet set = bestInstructions()) {
#if defined(__x86_64__)
  if (set == InstructionSet::avx512) return runWithAvx512(loop);
  if (set == InstructionSet::avx2) return runWithAvx2Bits(loop);
#endif
  return loop();
}

}  // namespace psd
