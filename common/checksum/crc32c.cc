#include "common/checksum/crc32c.h"

#include <array>
#include <bit>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace psd {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bit-reversed

/// kTables[k][b]: the effect of byte b, k bytes before the end of eight ("slicing by 8").
constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t b = 0; b < 256; b++) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; k++) {
    for (size_t b = 0; b < 256; b++) {
      tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 0xff];
    }
  }
  return tables;
}();

uint32_t withTables(uint32_t crc, const unsigned char* p, size_t n) {
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; k++) crc ^= kTables[7 - k][word >> 8 * k & 0xff];
  }
  for (; n > 0; p++, n--) crc = crc >> 8 ^ kTables[0][(crc ^ *p) & 0xff];
  return crc;
}

#if defined(__x86_64__)

/// What appending a number of zero bytes does to a checksum, as a linear map on its bits: the image of each.
using ZerosMap = std::array<uint32_t, 32>;

constexpr uint32_t apply(const ZerosMap& map, uint32_t crc) {
  uint32_t image = 0;
  for (size_t bit = 0; crc != 0; bit++, crc >>= 1) image ^= crc & 1 ? map[bit] : 0;
  return image;
}

/// kZeros<bytes>[k][b]: what byte k of a checksum, if it is b, contributes to the checksum after `bytes` more
/// zero bytes; the contributions of its four bytes are added (xor). As in Mark Adler's crc32c.c.
template <size_t bytes>
constexpr auto kZeros = [] {
  static_assert(std::has_single_bit(bytes));
  ZerosMap map{};
  for (size_t bit = 0; bit < 32; bit++) {
    const uint32_t crc = uint32_t{1} << bit;
    map[bit] = crc >> 8 ^ kTables[0][crc & 0xff];
  }
  for (size_t reached = 1; reached < bytes; reached *= 2) {
    ZerosMap twice{};
    for (size_t bit = 0; bit < 32; bit++) twice[bit] = apply(map, map[bit]);
    map = twice;
  }
  std::array<std::array<uint32_t, 256>, 4> tables{};
  for (size_t k = 0; k < 4; k++) {
    for (uint32_t b = 0; b < 256; b++) tables[k][b] = apply(map, b << 8 * k);
  }
  return tables;
}();

template <size_t bytes>
uint32_t appendZeros(uint32_t crc) {
  const auto& tables = kZeros<bytes>;
  return tables[0][crc & 0xff] ^ tables[1][crc >> 8 & 0xff] ^ tables[2][crc >> 16 & 0xff] ^
         tables[3][crc >> 24];
}

/// The checksum of as many triples of `piece` bytes as there are, which `p` and `n` then leave. The three
/// pieces are computed side by side: the instruction starts every cycle, and its result takes three.
template <size_t piece>
__attribute__((target("sse4.2"))) uint64_t inTriples(uint64_t crc, const unsigned char*& p, size_t& n) {
  for (; n >= 3 * piece; p += 3 * piece, n -= 3 * piece) {
    uint64_t second = 0, third = 0;
    for (size_t at = 0; at < piece; at += 8) {
      uint64_t words[3];
      for (size_t k = 0; k < 3; k++) std::memcpy(&words[k], p + k * piece + at, 8);
      crc = _mm_crc32_u64(crc, words[0]);
      second = _mm_crc32_u64(second, words[1]);
      third = _mm_crc32_u64(third, words[2]);
    }
    const uint32_t two = appendZeros<piece>(static_cast<uint32_t>(crc)) ^ static_cast<uint32_t>(second);
    crc = appendZeros<piece>(two) ^ static_cast<uint32_t>(third);
  }
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t withInstruction(uint32_t crc, const unsigned char* p, size_t n) {
  // Large pieces keep the prefetchers of the memory at work, small ones leave less for the loops below.
  uint64_t wide = inTriples<128 << 10>(crc, p, n);
  wide = inTriples<4096>(wide, p, n);
  wide = inTriples<256>(wide, p, n);
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; n > 0; p++, n--) crc = _mm_crc32_u8(crc, *p);
  return crc;
}
#endif

using Update = uint32_t (*)(uint32_t, const unsigned char*, size_t);

Update best() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return withInstruction;
#endif
  return withTables;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous) {
  static const Update update = best();
  return ~update(~previous, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

namespace detail {
uint32_t crc32cWithTables(std::span<const std::byte> bytes, uint32_t previous) {
  return ~withTables(~previous, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}
}  // namespace detail

std::string crcText(uint32_t crc) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", crc);
  return text;
}

}  // namespace psd
