#pragma once

#include <cstdint>

namespace psd {

/// to[0 … count) = from[0 … count), while another process may write `from`: each element is read atomically.
/// For a part of a large copy, of `whole` elements in total, it bypasses the processor's caches, which is up
/// to twice as fast as memcpy. The ranges do not overlap. Thread-safe.
void liveCopy(uint64_t count, const float* from, float* to, uint64_t whole);

}  // namespace psd
