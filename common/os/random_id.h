#pragma once

#include <cstdint>

namespace psd {

/// 64 random bits of the kernel. Not std::random_device: that of a static libstdc++ needs glibc 2.36.
uint64_t drawBits();

/// A number that nobody else has, by all odds. Never 0, which stands for none.
uint64_t drawId();

}  // namespace psd
