#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <spdlog/spdlog.h>

namespace psd {

/// What a line of the log is about: keys of its object in the JSON format, beside the message. The text
/// format prints the message alone, so the message states all of it too. A value type.
struct LogFields {
  std::string event;             ///< the kind of event; that of `psd events` where there is one
  std::optional<uint32_t> rank;  ///< of the trainer
  std::string process;           ///< of the trainer, as "4711@node-3"
  std::string peer;              ///< the other end of the connection
  std::optional<uint64_t> step;  ///< of the trainer
  std::string by;                ///< who asked for it: an operator, or of a join the caller
  bool limited = false;          ///< an unauthenticated peer can cause the line; LogLimit bounds how many
};

/// While it lives, lines that this thread logs have these fields. Belongs to one thread.
class LogFieldsScope {
 public:
  explicit LogFieldsScope(const LogFields& fields);
  ~LogFieldsScope();
  LogFieldsScope(const LogFieldsScope&) = delete;
  LogFieldsScope& operator=(const LogFieldsScope&) = delete;

  /// Returns the fields of the innermost scope of the calling thread, or null outside of any scope.
  static const LogFields* current();

 private:
  const LogFields* const outer_;
};

/// Logs a line with fields. Thread-safe.
template <class... Args>
void logLine(spdlog::level::level_enum level, const LogFields& fields,
             spdlog::format_string_t<Args...> format, Args&&... arguments) {
  const LogFieldsScope scope(fields);
  spdlog::log(level, format, std::forward<Args>(arguments)...);
}

}  // namespace psd
