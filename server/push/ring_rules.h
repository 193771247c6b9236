#pragma once

#include <cstdint>
#include <span>

#include "common/budget/byte_budget.h"
#include "server/config/daemon_config.h"

namespace psd {

/// The share of `all`, limits.all_rings_bytes, of a ring of so many bytes, which takes `taken` of memory.
/// ErrorCode::invalidArgument when limits.ring_bytes does not allow so many, ErrorCode::overloaded when `all`
/// does not.
Result<ByteBudget::Lease> leaseRing(uint64_t bytes, uint64_t taken, const Limits& limits, ByteBudget& all);

/// Whether `count` floats at byte `at` lie in a ring of so many bytes, at a multiple of the layout's grain
/// (64 bytes); else ErrorCode::badSlice.
Status checkPlaceInRing(uint64_t at, uint64_t count, uint64_t ringBytes);

}  // namespace psd
