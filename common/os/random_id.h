#pragma once

#include <cstdint>

namespace psd {

/// 64 random bits from the kernel. Not std::random_device: that of a static libstdc++ needs glibc 2.36.
uint64_t drawBits();

/// A random number that is unique for all practical purposes. Never 0, which means none.
uint64_t drawId();

}  // namespace psd
