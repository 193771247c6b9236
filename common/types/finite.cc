#include "common/types/finite.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace psd {
namespace {

constexpr uint32_t kExponentBits = 0x7f800000;  // all set: infinity or NaN
constexpr size_t kBlockElements = 4096;         // 16 KiB: stays in the first-level cache

}  // namespace

bool allFinite(std::span<const float> values) {
  while (!values.empty()) {
    const auto block = values.first(std::min(values.size(), kBlockElements));
    uint32_t found = 0;
    for (const float value : block) {
      found |= (std::bit_cast<uint32_t>(value) & kExponentBits) == kExponentBits ? 1u : 0u;
    }
    if (found != 0) return false;
    values = values.subspan(block.size());
  }
  return true;
}

}  // namespace psd
