#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "common/log/log_losses.h"
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

/// Sets spdlog's default logger, to a LogSink. Call once in main() before threads start; logging itself is
/// thread-safe, and waits neither for a disk nor for a reader. Fails with the path and the reason when the
/// file cannot be opened.
Status initLogging(const LogOptions& options);

/// Changes the level of the running logger. Thread-safe.
void setLogLevel(const std::string& level);

// For the logger that initLogging() set; without one they do nothing. Thread-safe.

/// Waits until all that was logged before is written; false when that takes longer than `most`.
bool flushLog(std::chrono::milliseconds most = kLogWait);
/// Opens the file's path again, for log rotation. An Error: the previous file stays in use. An
/// error that takes longer than kLogWait becomes a line of the log.
Status reopenLogFile();
LogLosses logLosses();

/// Writes a line to standard error at the end of a program. Of one that logs, once its log is written, and
/// where standard error takes nothing for kLogWait, not at all.
void printLastLine(std::string_view line);

}  // namespace psd
