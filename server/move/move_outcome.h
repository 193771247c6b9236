#pragma once

#include <cstdint>

#include <kj/time.h>

namespace psd {

/// What the lead of the daemons that had a model says of a move.
enum class MoveOutcome : uint8_t {
  unknown,   ///< it is another process than the one that gave the model
  underWay,  ///< it may come to count
  stays,     ///< it was given up, for ever
  counts,    ///< the model has moved
};

/// Until whoever does not know asks first, and at last again.
inline constexpr kj::Duration kAskSoon = 100 * kj::MILLISECONDS, kAskSeldom = 10 * kj::SECONDS;

}  // namespace psd
