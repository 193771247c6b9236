#pragma once

#include <cstddef>
#include <string>

#include "common/status/status.h"

namespace psd {

/// Longer messages are cut. In the text format each message is made one line (common/text/text.h).
inline constexpr size_t kMessageBytesMax = 8192;

/// How a program logs.
struct LogOptions {
  std::string level = "info";   ///< trace, debug, info, warn, error or off
  std::string format = "text";  ///< text (for people) or json (one object per line)
  std::string file;             ///< path, appended to; empty: standard error
};

/// Sets spdlog's default logger. Call once in main() before threads start; logging itself is
/// thread-safe. Fails with the path and the reason when the file cannot be opened.
Status initLogging(const LogOptions& options);

/// Changes the level of the running logger. Thread-safe.
void setLogLevel(const std::string& level);

}  // namespace psd
