#include "trainer/client/transport/live_copy.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace psd {
namespace {

// Smaller copies are likely to be used from the cache.
constexpr uint64_t kStreamElementsMin = (4u << 20) / sizeof(float);

void copyPlain(uint64_t count, const float* from, float* to) { std::memcpy(to, from, count * sizeof *to); }

#if defined(__x86_64__)
constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kLineElements = kLineBytes / sizeof(float);

/// Elements before the first whole cache line of `to`.
uint64_t untilLine(const float* to, uint64_t count) {
  const uint64_t bytes = -reinterpret_cast<uintptr_t>(to) % kLineBytes;
  return std::min(count, bytes / sizeof(float));
}

// Non-temporal stores bypass the caches: a line that is written whole need not be read first. Hardware
// prefetching stops at a page boundary, and the daemon's memory is mostly in 4 KiB pages: prefetching two
// pages ahead hides some of the page table walks. Prefetching past the end is harmless.
constexpr uint64_t kAheadElements = (8u << 10) / sizeof(float);

void prefetchAhead(const float* from) { __builtin_prefetch(from + kAheadElements); }

__attribute__((target("avx2"))) void copyAvx2(uint64_t count, const float* from, float* to) {
  const uint64_t head = untilLine(to, count);
  copyPlain(head, from, to);
  uint64_t i = head;
  for (; i + kLineElements <= count; i += kLineElements) {
    prefetchAhead(from + i);
    const __m256 low = _mm256_loadu_ps(from + i), high = _mm256_loadu_ps(from + i + 8);
    _mm256_stream_ps(to + i, low);
    _mm256_stream_ps(to + i + 8, high);
  }
  _mm_sfence();  // non-temporal stores are not ordered with later stores that publish them
  copyPlain(count - i, from + i, to + i);
}

__attribute__((target("avx512f"))) void copyAvx512(uint64_t count, const float* from, float* to) {
  const uint64_t head = untilLine(to, count);
  copyPlain(head, from, to);
  uint64_t i = head;
  for (; i + kLineElements <= count; i += kLineElements) {
    prefetchAhead(from + i);
    _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
  }
  _mm_sfence();
  copyPlain(count - i, from + i, to + i);
}
#endif

using Copy = void (*)(uint64_t, const float*, float*);

Copy bestStreamingCopy() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return copyAvx512;
  if (__builtin_cpu_supports("avx2")) return copyAvx2;
#endif
  return copyPlain;
}

}  // namespace

void liveCopy(uint64_t count, const float* from, float* to, uint64_t whole) {
  static const Copy streaming = bestStreamingCopy();
  (whole >= kStreamElementsMin ? streaming : copyPlain)(count, from, to);
}

}  // namespace psd
