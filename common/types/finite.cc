#include "common/types/finite.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

namespace psd {
namespace {

constexpr uint32_t kExponentBits = 0x7f800000;  // all set: infinity or NaN
constexpr size_t kBlockElements = 4096;         // 16 KiB: fits into the L1 cache
constexpr size_t kPieceElements = 256, kLineElements = 16;

__attribute__((always_inline)) inline bool checkBlocks(std::span<const float> values) {
  while (!values.empty()) {
    const auto block = values.first(std::min(values.size(), kBlockElements));
    uint32_t found = 0;
    for (size_t at = 0; at < block.size(); at += kPieceElements) {
      const auto piece = block.subspan(at, std::min(kPieceElements, block.size() - at));
      // Prefetch two pieces ahead: another core may just have written the data. Past the end this is
      // harmless.
      for (size_t i = 0; i < kPieceElements; i += kLineElements) {
        __builtin_prefetch(piece.data() + 2 * kPieceElements + i);
      }
      for (const float value : piece) {
        found |= (std::bit_cast<uint32_t>(value) & kExponentBits) == kExponentBits ? 1u : 0u;
      }
    }
    if (found != 0) return false;
    values = values.subspan(block.size());
  }
  return true;
}

// checkBlocks() for two instruction sets. The wider one reads just-received gradients at cache speed, so that
// the check is nearly free beside the optimizer step that follows.

bool checkBaseline(std::span<const float> values) { return checkBlocks(values); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) bool checkAvx2(std::span<const float> values) { return checkBlocks(values); }
#endif

const char* nonFiniteName(float value) { return std::isnan(value) ? "nan" : "infinity"; }

using Check = bool (*)(std::span<const float>);

Check bestCheck() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return checkAvx2;
#endif
  return checkBaseline;
}

}  // namespace

bool allFinite(std::span<const float> values) {
  static const Check check = bestCheck();
  return check(values);
}

std::string nonFiniteElement(std::string_view tensor, float value, uint64_t element, uint64_t count) {
  return fmt::format("{} holds {} at element {} of {}", tensor, nonFiniteName(value), element, count);
}

std::string nonFiniteRow(std::string_view table, float value, uint64_t id) {
  return fmt::format("{} holds {} in the row of id {}", table, nonFiniteName(value), id);
}

}  // namespace psd
