#pragma once

namespace psd {

/// Goes between the parameters and the body of a lambda passed to vectorised(), and before a function that it
/// calls.
#define PSD_VECTORISED __attribute__((always_inline))

#if defined(__x86_64__)
template <class Loop>
__attribute__((target("avx2"))) void runWithAvx2(Loop loop) {
  loop();
}
#endif

/// Runs `loop`, which is compiled for the baseline of x86-64 or AArch64 and for AVX2, and chosen by the
/// processor. Both give equal results: no operation is contracted (-ffp-contract=off) and sums keep their
/// order.
///
/// The lambda must capture by value, and accumulate in local variables: data behind a reference could alias
/// what a loop writes to, which prevents vectorisation.
template <class Loop>
void vectorised(Loop loop) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return runWithAvx2(loop);
#endif
  loop();
}

}  // namespace psd
