#pragma once

namespace psd {

/// Between the parameters and the body of a lambda that is handed to vectorised().
#define PSD_VECTORISED __attribute__((always_inline))

#if defined(__x86_64__)
template <class Loop>
__attribute__((target("avx2"))) void runWithAvx2(const Loop& loop) {
  loop();
}
#endif

/// Runs `loop`, compiled once for every x86-64 or AArch64 and once for AVX2, as what this processor has. The
/// results are the same: no operation is contracted (-ffp-contract=off) and sums keep their order.
template <class Loop>
void vectorised(const Loop& loop) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return runWithAvx2(loop);
#endif
  loop();
}

}  // namespace psd
