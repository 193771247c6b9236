#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <spdlog/spdlog.h>

namespace psd {

/// Structured fields of a log line: keys of its object in the JSON format, beside the message. The text
/// format prints only the message, so the message must state them too. A value type.
struct LogFields {
  std::string event;             ///< the kind of event; as in `psd events` where it has one
  std::optional<uint32_t> rank;  ///< of the trainer
  std::string process;           ///< of the trainer, like "4711@node-3"
  std::string peer;              ///< of the connection
  std::optional<uint64_t> step;  ///< of the trainer
  std::string by;                ///< who requested it: an operator, or the caller of a join
  bool limited = false;          ///< an unauthenticated peer can cause the line; LogLimit bounds the number
};

/// While it exists, lines logged by this thread have these fields. Belongs to one thread.
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
