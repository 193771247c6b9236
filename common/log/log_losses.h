#pragma once

#include <chrono>
#include <cstdint>

namespace psd {

/// How long a program waits for its log at exit, and a reload for the file to open.
inline constexpr std::chrono::milliseconds kLogWait{200};

/// Counts of lines missing from the log. A value type.
struct LogLosses {
  uint64_t dropped = 0;     ///< standard error or the file was too slow, or could not be written
  uint64_t suppressed = 0;  ///< suppressed lines of peers without access (LogLimit)
};

}  // namespace psd
