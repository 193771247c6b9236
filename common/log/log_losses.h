#pragma once

#include <chrono>
#include <cstdint>

namespace psd {

/// How long the end of a program waits for its log, and a reload for the file to open.
inline constexpr std::chrono::milliseconds kLogWait{200};

/// Lines that are not in the log, so far. A value type.
struct LogLosses {
  uint64_t dropped = 0;     ///< standard error or the file was too slow, or could not be written
  uint64_t suppressed = 0;  ///< peers without access caused too many (LogLimit)
};

}  // namespace psd
