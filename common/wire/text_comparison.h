#pragma once

// Included before all else where Cap'n Proto is older than 1.0 and the compiler from 2023 or later: those
// compare `a == b` by `b == a` no more where there is an operator!= too (P2468), which <capnp/blob.h> counts
// on.

#include <kj/string.h>

namespace kj {

inline bool operator==(const char* a, const StringPtr& b) { return b.operator==(StringPtr(a)); }
inline bool operator!=(const char* a, const StringPtr& b) { return !b.operator==(StringPtr(a)); }

}  // namespace kj
