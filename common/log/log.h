#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "common/log/log_losses.h"
#include "common/status/status.h"

namespace psd {

/// Longer messages are truncated. In the text format each message is one line (common/text/text.h).
inline constexpr size_t kMessageBytesMax = 8192;

/// Logging options of a program.
struct LogOptions {
  std::string level = "info";   ///< trace, debug, info, warn, error or off
  std::string format = "text";  ///< text (human-readable) or json (one object per line)
  std::string file;             ///< path, appended to; empty: standard error
};

/// Installs a LogSink as spdlog's default logger. Call once in main() before threads start; logging itself is
/// thread-safe, and waits neither for a disk nor for a reader. If the file cannot be opened the Error has the
/// path and the reason.
Status initLogging(const LogOptions& options);

/// Changes the level of the running logger. Thread-safe.
void setLogLevel(const std::string& level);

// For the logger that initLogging() installed; without one they do nothing. Thread-safe.

/// Waits until all earlier lines are written; false if that takes longer than `most`.
bool flushLog(std::chrono::milliseconds most = kLogWait);
/// Reopens the file at its path, for log rotation. On an Error the previous file stays in use. An error that
/// takes longer than kLogWait is logged instead.
Status reopenLogFile();
LogLosses logLosses();

/// Writes a program's last line to standard error. A program that logs first flushes its log, and drops the
/// line if standard error accepts nothing for kLogWait.
void printLastLine(std::string_view line);

}  // namespace psd
