#pragma once

#include <cstdint>
#include <span>

#include "common/budget/byte_budget.h"
#include "server/config/daemon_config.h"

namespace psd {

/// Leases `taken` bytes from `all` (limits.all_rings_bytes) for a ring of `bytes`. ErrorCode::invalidArgument
/// if limits.ring_bytes does not allow `bytes`, ErrorCode::overloaded if `all` is exhausted.
Result<ByteBudget::Lease> leaseRing(uint64_t bytes, uint64_t taken, const Limits& limits, ByteBudget& all);

/// ErrorCode::badSlice unless `count` floats at byte `at` lie within a ring of `ringBytes`, at a multiple of
/// the layout's grain (64 bytes).
Status checkPlaceInRing(uint64_t at, uint64_t count, uint64_t ringBytes);

}  // namespace psd
