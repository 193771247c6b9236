#pragma once

namespace psd {

/// Between the parameters and the body of a lambda that is handed to vectorised(); before a function that it
/// calls.
#define PSD_VECTORISED __attribute__((always_inline))

#if defined(__x86_64__)
template <class Loop>
__attribute__((target("avx2"))) void runWithAvx2(Loop loop) {
  loop();
}
#endif

/// Runs `loop`, which is compiled once for every x86-64 or AArch64 and once for AVX2, as this processor
/// allows. Both give equal results: no operation is contracted (-ffp-contract=off) and sums keep their order.
///
/// The lambda captures by value, and counts in variables of its own: what lies behind a reference could be
/// what a loop writes to, and such a loop stays scalar.
template <class Loop>
void vectorised(Loop loop) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return runWithAvx2(loop);
#endif
  loop();
}

}  // namespace psd
