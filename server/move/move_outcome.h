#pragma once

#include <cstdint>

#include <kj/time.h>

namespace psd {

/// The outcome of a move, as reported by the source's lead.
enum class MoveOutcome : uint8_t {
  unknown,   ///< the process asked is not the one that sent the model
  underWay,  ///< it may still be committed
  stays,     ///< it was aborted for good
  counts,    ///< the model has moved
};

/// First and longest pause between polls for an unknown outcome.
inline constexpr kj::Duration kFirstPollPause = 100 * kj::MILLISECONDS, kMaxPollPause = 10 * kj::SECONDS;

}  // namespace psd
