#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <spdlog/formatter.h>
#include <spdlog/sinks/sink.h>

#include "common/log/log_losses.h"
#include "common/log/log_target.h"
#include "common/status/status.h"

namespace psd {

/// The sink of a program's log: formats a line on the thread that logs it, and leaves the write to a thread
/// of its own, so that neither a pipe that is not read nor a file system that hangs stops anything else.
/// Where the target falls behind, lines are dropped and counted (LogBacklog); a line states the count once
/// the target takes lines again. Thread-safe. A child of fork() must exec: it has no thread that writes.
class LogSink final : public spdlog::sinks::sink {
 public:
  struct Style {
    bool priority = false;  ///< "<4>" before each line, as journald reads it
    bool color = false;     ///< of the part of the line that the formatter marks
  };

  LogSink(LogTarget target, std::unique_ptr<spdlog::formatter> formatter, Style style);
  /// Waits kLogWait at most.
  ~LogSink() override;

  void log(const spdlog::details::log_msg& message) override;
  /// Waits kLogWait at most.
  void flush() override { flush(kLogWait); }
  /// Waits until all that was logged before is written; false when that takes longer than `most`.
  bool flush(std::chrono::milliseconds most);
  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;
  /// LogTarget::reopen(), for which it waits kLogWait at most; a later error becomes a line.
  Status reopen();
  LogLosses losses() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  ///< the thread outlives the sink where the target hangs
};

}  // namespace psd
