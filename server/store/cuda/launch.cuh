#pragma once

#include <algorithm>
#include <cstdint>

namespace psd {

inline constexpr uint32_t kThreadsPerBlock = 256;
inline constexpr uint64_t kBlocksMax = 1024;  // about the capacity of a large device; kernels stride

inline uint32_t blocksFor(uint64_t threads) {
  const uint64_t blocks = (threads + kThreadsPerBlock - 1) / kThreadsPerBlock;
  return static_cast<uint32_t>(std::clamp<uint64_t>(blocks, 1, kBlocksMax));
}

}  // namespace psd
