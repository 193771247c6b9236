#include "common/log/log.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>
#include <poll.h>
#include <spdlog/details/os.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log/log_line.h"
#include "common/log/log_sink.h"
#include "common/text/text.h"

namespace psd {
namespace {

/// The level's name in the configuration; spdlog's "warning" is "warn".
std::string_view levelName(spdlog::level::level_enum level) {
  if (level == spdlog::level::warn) return "warn";
  const auto name = spdlog::level::to_string_view(level);
  return {name.data(), name.size()};
}

/// The level as a column of fixed width, in the text format. Owned by its sink.
class LevelColumn final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    constexpr size_t kWidth = 5;
    const std::string_view name = levelName(message.level);
    out.append(name.data(), name.data() + name.size());
    for (size_t i = name.size(); i < kWidth; i++) out.push_back(' ');
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<LevelColumn>();
  }
};

/// The message as one line of the text format, whatever characters it quotes.
class MessageColumn final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = oneLine({message.payload.data(), message.payload.size()}, kMessageBytesMax);
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<MessageColumn>();
  }
};

/// One JSON object per line: time (UTC, milliseconds), level, message, and the line's fields. Owned by its
/// sink, which calls it under the sink's lock.
class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    using std::chrono::duration_cast, std::chrono::milliseconds;
    auto sinceEpoch = duration_cast<milliseconds>(message.time.time_since_epoch()).count();
    std::time_t seconds = sinceEpoch / 1000;
    std::tm utc{};
    gmtime_r(&seconds, &utc);
    char time[64];
    size_t length = std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &utc);
    std::snprintf(time + length, sizeof time - length, ".%03dZ", static_cast<int>(sinceEpoch % 1000));
    std::string payload(message.payload.data(), std::min(message.payload.size(), kMessageBytesMax));
    if (payload.size() < message.payload.size()) payload += "...";
    nlohmann::ordered_json line = {
        {"time", time}, {"level", levelName(message.level)}, {"message", std::move(payload)}};
    if (const LogFields* fields = LogFieldsScope::current()) add(*fields, line);
    std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }

 private:
  static void add(const LogFields& fields, nlohmann::ordered_json& line) {
    if (!fields.event.empty()) line["event"] = fields.event;
    if (fields.rank) line["rank"] = *fields.rank;
    if (!fields.process.empty()) line["process"] = fields.process;
    if (!fields.peer.empty()) line["peer"] = fields.peer;
    if (fields.step) line["step"] = *fields.step;
    if (!fields.by.empty()) line["by"] = fields.by;
  }
};

/// Whether standard error is connected to the journal, which parses priorities. JOURNAL_STREAM has device and
/// inode of systemd's stream; after a redirection they differ.
bool goesToJournal() {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat info {};
  if (stream == nullptr || fstat(STDERR_FILENO, &info) != 0) return false;
  return stream == std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

bool isColorTerminal() {
  const char* const plain = std::getenv("NO_COLOR");  // https://no-color.org
  return (plain == nullptr || *plain == '\0') && spdlog::details::os::in_terminal(stderr) &&
         spdlog::details::os::is_color_terminal();
}

/// The sink of the running logger; null before initLogging().
std::shared_ptr<LogSink> currentSink() {
  const auto logger = spdlog::default_logger();
  if (!logger) return nullptr;
  for (const spdlog::sink_ptr& sink : logger->sinks()) {
    if (auto ours = std::dynamic_pointer_cast<LogSink>(sink)) return ours;
  }
  return nullptr;
}

}  // namespace

Status initLogging(const LogOptions& options) {
  const bool json = options.format == "json", toFile = !options.file.empty();
  const bool toJournal = !json && !toFile && goesToJournal();
  std::unique_ptr<spdlog::formatter> formatter;
  if (json) {
    formatter = std::make_unique<JsonFormatter>();
  } else {
    auto pattern = std::make_unique<spdlog::pattern_formatter>();
    pattern->add_flag<LevelColumn>('*').add_flag<MessageColumn>('&');
    // The journal stores the time of each line.
    pattern->set_pattern(toJournal ? "%* %&" : "%Y-%m-%d %H:%M:%S.%e %^%*%$ %&");
    formatter = std::move(pattern);
  }
  PSD_ASSIGN_OR_RETURN(LogTarget target, LogTarget::open(options.file));
  const LogSink::Style style{.priority = toJournal, .color = !json && !toFile && isColorTerminal()};
  auto sink = std::make_shared<LogSink>(std::move(target), std::move(formatter), style);
  auto logger = std::make_shared<spdlog::logger>("psd", sink);
  logger->flush_on(spdlog::level::off);  // the sink's thread writes immediately
  spdlog::set_default_logger(std::move(logger));
  setLogLevel(options.level);
  return {};
}

void setLogLevel(const std::string& level) { spdlog::set_level(spdlog::level::from_str(level)); }

bool flushLog(std::chrono::milliseconds most) {
  const auto sink = currentSink();
  return !sink || sink->flush(most);
}

Status reopenLogFile() {
  const auto sink = currentSink();
  return sink ? sink->reopen() : Status();
}

LogLosses logLosses() {
  const auto sink = currentSink();
  return sink ? sink->losses() : LogLosses();
}

void printLastLine(std::string_view line) {
  const bool logs = currentSink() != nullptr;
  flushLog();
  std::string text = std::string(line) + "\n";
  while (!text.empty()) {
    pollfd room{STDERR_FILENO, POLLOUT, 0};
    const int ready = poll(&room, 1, logs ? static_cast<int>(kLogWait.count()) : -1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return;
    // As much as a pipe accepts without blocking once it is writable.
    const ssize_t written = write(STDERR_FILENO, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (written < 0 && errno != EINTR && errno != EAGAIN) return;
    if (written > 0) text.erase(0, static_cast<size_t>(written));
  }
}

}  // namespace psd
