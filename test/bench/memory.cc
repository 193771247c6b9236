#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "server/store/cpu/racy_loops.h"
#include "test/bench/references.h"

namespace psd::bench {
namespace {

/// Keeps the compiler from eliminating the writes to `p`.
void keep(const void* p) { asm volatile("" ::"r"(p) : "memory"); }

/// Copies with non-temporal stores; both sides are 64-byte aligned. The rest below 64 bytes is copied
/// normally. Without such stores it is memcpy.
void copyStreaming(float* to, const float* from, uint64_t bytes) {
#if defined(__x86_64__)
  auto* out = reinterpret_cast<__m128i*>(to);
  const auto* in = reinterpret_cast<const __m128i*>(from);
  const uint64_t whole = bytes / 64 * 64;
  for (uint64_t i = 0; i < whole / sizeof(__m128i); i += 4) {
    const __m128i a = _mm_load_si128(in + i), b = _mm_load_si128(in + i + 1);
    const __m128i c = _mm_load_si128(in + i + 2), d = _mm_load_si128(in + i + 3);
    _mm_stream_si128(out + i, a);
    _mm_stream_si128(out + i + 1, b);
    _mm_stream_si128(out + i + 2, c);
    _mm_stream_si128(out + i + 3, d);
  }
  _mm_sfence();
  std::memcpy(reinterpret_cast<char*>(to) + whole, reinterpret_cast<const char*>(from) + whole,
              bytes - whole);
#else
  std::memcpy(to, from, bytes);
#endif
}

void triadLoop(uint64_t n, float scale, float* __restrict a, const float* __restrict b,
               const float* __restrict c) {
  for (uint64_t i = 0; i < n; ++i) a[i] = b[i] + scale * c[i];
}

// Compiled for the same instruction sets as the optimizers' loops, so that the two are comparable.
#if defined(__x86_64__)
__attribute__((target("avx2"), flatten)) void triadAvx2(uint64_t n, float scale, float* a, const float* b,
                                                        const float* c) {
  triadLoop(n, scale, a, b, c);
}
__attribute__((target("avx512f"), flatten)) void triadAvx512(uint64_t n, float scale, float* a,
                                                             const float* b, const float* c) {
  triadLoop(n, scale, a, b, c);
}
#endif

void triad(uint64_t n, float scale, float* a, const float* b, const float* c) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return triadAvx512(n, scale, a, b, c);
  if (__builtin_cpu_supports("avx2")) return triadAvx2(n, scale, a, b, c);
#endif
  triadLoop(n, scale, a, b, c);
}

Optimizer optimizerOf(MemoryOperation operation) {
  Optimizer optimizer;
  if (operation == MemoryOperation::momentum) optimizer.algorithm = Sgd{.momentum = 0.9};
  if (operation == MemoryOperation::adagrad) optimizer.algorithm = Adagrad{};
  if (operation == MemoryOperation::adam) optimizer.algorithm = Adam{};
  if (operation == MemoryOperation::lion) optimizer.algorithm = Lion{};
  if (operation == MemoryOperation::ftrl || operation == MemoryOperation::ftrlRacing)
    optimizer.algorithm = Ftrl{};
  return optimizer;
}

/// Reads weight, gradient and each slot; writes weight and each slot. `races`: as under `hogwild`.
MemoryTiming measureOptimizer(const Optimizer& optimizer, bool races, uint64_t bytes, double seconds) {
  const Floats weights(bytes), gradient(bytes);
  std::vector<std::unique_ptr<Floats>> memory;
  std::vector<float*> slots;
  for (uint32_t i = 0; i < optimizer.slotCount(); ++i) {
    memory.push_back(std::make_unique<Floats>(bytes));
    slots.push_back(memory.back()->data());
  }
  // Not zero: what remains of a gradient after many steps must not become subnormal, which is slow.
  std::fill_n(gradient.data(), gradient.count(), 1.f);
  const Timing timing = measure(seconds, [&] {
    racyApply(optimizer, {.number = 2, .learningRate = 1e-3, .races = races}, 0, weights.count(),
              weights.data(), gradient.data(), slots);
    keep(weights.data());
  });
  return {timing, bytes * (3 + 2 * slots.size())};
}

}  // namespace

MemoryTiming measureMemory(MemoryOperation operation, uint64_t bytes, double seconds) {
  switch (operation) {
    case MemoryOperation::copy:
    case MemoryOperation::copyStreaming: {
      const Floats from(bytes), to(bytes);
      const bool streaming = operation == MemoryOperation::copyStreaming;
      const Timing timing = measure(seconds, [&] {
        streaming ? copyStreaming(to.data(), from.data(), bytes)
                  : static_cast<void>(std::memcpy(to.data(), from.data(), bytes));
        keep(to.data());
      });
      return {timing, 2 * bytes};
    }
    case MemoryOperation::triad: {
      const Floats a(bytes), b(bytes), c(bytes);
      const Timing timing = measure(seconds, [&] {
        triad(a.count(), 3.f, a.data(), b.data(), c.data());
        keep(a.data());
      });
      return {timing, 3 * bytes};
    }
    default:
      return measureOptimizer(optimizerOf(operation), operation == MemoryOperation::ftrlRacing, bytes,
                              seconds);
  }
}

}  // namespace psd::bench
