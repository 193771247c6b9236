#include "common/checksum/crc32c.h"

#include <array>
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
__attribute__((target("sse4.2"))) uint32_t withInstruction(uint32_t crc, const unsigned char* p, size_t n) {
  uint64_t wide = crc;
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
