#include "common/patch/changed_bits.h"

#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace psd {
namespace {

constexpr uint64_t kBits = 64;  // elements of one word of the result

template <class T>
uint64_t wordOf(const std::byte* before, const std::byte* after, uint64_t count) {
  uint64_t word = 0;
  for (uint64_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, before + i * sizeof a, sizeof a);
    std::memcpy(&b, after + i * sizeof b, sizeof b);
    word |= uint64_t{a != b} << i;
  }
  return word;
}

struct Baseline {
  template <class T>
  static void run(const std::byte* before, const std::byte* after, uint64_t words, uint64_t* changed) {
    constexpr uint64_t kBytes = kBits * sizeof(T);
    for (uint64_t i = 0; i < words; ++i, before += kBytes, after += kBytes) {
      const bool differs = std::memcmp(before, after, kBytes) != 0;
      changed[i] = differs ? wordOf<T>(before, after, kBits) : 0;
    }
  }
};

#if defined(__x86_64__)
struct Avx2 {
  PSD_TARGET_AVX2 static __m256i load(const std::byte* from, int i) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
  }

  /// 32 × sizeof(T) bytes as 32 bits, set where elements are equal.
  template <class T>
  PSD_TARGET_AVX2 static uint32_t equal32(const std::byte* before, const std::byte* after) {
    if constexpr (sizeof(T) == 1) {
      return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(load(before, 0), load(after, 0))));
    } else if constexpr (sizeof(T) == 2) {
      const __m256i low = _mm256_cmpeq_epi16(load(before, 0), load(after, 0)),
                    high = _mm256_cmpeq_epi16(load(before, 1), load(after, 1));
      // Packing works on halves of a register: 0, 2, 1, 3 restores the order.
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
      return static_cast<uint32_t>(_mm256_movemask_epi8(packed));
    } else {
      uint32_t bits = 0;
      for (int i = 0; i < static_cast<int>(sizeof(T)); ++i) {
        const __m256i a = load(before, i), b = load(after, i);
        if constexpr (sizeof(T) == 4) {
          bits |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b))))
                  << 8 * i;
        } else {
          bits |= static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(a, b))))
                  << 4 * i;
        }
      }
      return bits;
    }
  }

  template <class T>
  PSD_TARGET_AVX2 static void run(const std::byte* before, const std::byte* after, uint64_t words,
                                  uint64_t* changed) {
    constexpr uint64_t kHalf = kBits / 2 * sizeof(T);
    for (uint64_t i = 0; i < words; ++i, before += 2 * kHalf, after += 2 * kHalf) {
      const uint64_t low = equal32<T>(before, after), high = equal32<T>(before + kHalf, after + kHalf);
      changed[i] = ~(low | high << 32);
    }
  }
};

struct Avx512 {
  template <class T>
  PSD_TARGET_AVX512 static uint64_t differing(__m512i a, __m512i b) {
    if constexpr (sizeof(T) == 1) return _mm512_cmpneq_epi8_mask(a, b);
    if constexpr (sizeof(T) == 2) return _mm512_cmpneq_epi16_mask(a, b);
    if constexpr (sizeof(T) == 4) return _mm512_cmpneq_epi32_mask(a, b);
    if constexpr (sizeof(T) == 8) return _mm512_cmpneq_epi64_mask(a, b);
  }

  template <class T>
  PSD_TARGET_AVX512 static void run(const std::byte* before, const std::byte* after, uint64_t words,
                                    uint64_t* changed) {
    constexpr uint64_t kRegister = sizeof(__m512i);
    for (uint64_t i = 0; i < words; ++i) {
      uint64_t word = 0;
      for (uint64_t part = 0; part < sizeof(T); ++part, before += kRegister, after += kRegister) {
        word |= differing<T>(_mm512_loadu_si512(before), _mm512_loadu_si512(after))
                << part * (kRegister / sizeof(T));
      }
      changed[i] = word;
    }
  }
};
#endif

template <class T>
void run(const std::byte* before, const std::byte* after, uint64_t count, uint64_t* changed,
         InstructionSet set) {
  const uint64_t words = count / kBits, rest = count % kBits;
#if defined(__x86_64__)
  if (set == InstructionSet::avx512) {
    Avx512::run<T>(before, after, words, changed);
  } else if (set == InstructionSet::avx2) {
    Avx2::run<T>(before, after, words, changed);
  } else {
    Baseline::run<T>(before, after, words, changed);
  }
#else
  static_cast<void>(set);
  Baseline::run<T>(before, after, words, changed);
#endif
  const uint64_t at = words * kBits * sizeof(T);
  if (rest != 0) changed[words] = wordOf<T>(before + at, after + at, rest);
}

}  // namespace

void changedBits(const std::byte* before, const std::byte* after, uint64_t count, uint32_t elementBytes,
                 uint64_t* changed, InstructionSet set) {
  switch (elementBytes) {
    case 1: return run<uint8_t>(before, after, count, changed, set);
    case 2: return run<uint16_t>(before, after, count, changed, set);
    case 4: return run<uint32_t>(before, after, count, changed, set);
    default: return run<uint64_t>(before, after, count, changed, set);
  }
}

}  // namespace psd
