#pragma once

#include <cstdint>

namespace psd {

/// to[0 … count) = from[0 … count), where another process may be writing `from`: each element comes as it is
/// when it is read, whole. A part of a large copy, of `whole` elements, leaves the processor's caches as they
/// are, which on its own is up to twice as fast as memcpy. The two do not overlap. Thread-safe.
void liveCopy(uint64_t count, const float* from, float* to, uint64_t whole);

}  // namespace psd
