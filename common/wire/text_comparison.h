#pragma once

// Included first when Cap'n Proto is older than 1.0 and the compiler is from 2023 or later: such compilers no
// longer rewrite `a == b` as `b == a` if an operator!= exists too (P2468), which <capnp/blob.h> relies on.

#include <kj/string.h>

namespace kj {

inline bool operator==(const char* a, const StringPtr& b) { return b.operator==(StringPtr(a)); }
inline bool operator!=(const char* a, const StringPtr& b) { return !b.operator==(StringPtr(a)); }

}  // namespace kj
