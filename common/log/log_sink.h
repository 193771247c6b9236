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

/// The sink of a program's log: formats a line on the logging thread, and writes it on its own thread, so
/// that neither an unread pipe nor a hanging file system blocks anything else. When the target falls behind,
/// lines are dropped and counted (LogBacklog); a line states the count once the target accepts lines again.
/// Thread-safe. A child of fork() must exec: it has no writer thread.
class LogSink final : public spdlog::sinks::sink {
 public:
  struct Style {
    bool priority = false;  ///< prefixes each line with "<4>" for journald
    bool color = false;     ///< colors the part of the line that the formatter marks
  };

  LogSink(LogTarget target, std::unique_ptr<spdlog::formatter> formatter, Style style);
  /// Waits at most kLogWait.
  ~LogSink() override;

  void log(const spdlog::details::log_msg& message) override;
  /// Waits at most kLogWait.
  void flush() override { flush(kLogWait); }
  /// Waits until all earlier lines are written; false if that takes longer than `most`.
  bool flush(std::chrono::milliseconds most);
  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;
  /// Calls LogTarget::reopen() on the thread and waits at most kLogWait; a later error is logged.
  Status reopen();
  LogLosses losses() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  ///< the thread outlives the sink if the target hangs
};

}  // namespace psd
