#include "common/log/log.h"

#include <algorithm>
#include <ctime>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "common/log/log_file.h"
#include "common/text/text.h"

namespace psd {
namespace {

/// The level's name in the configuration, where spdlog says "warning".
std::string_view levelName(spdlog::level::level_enum level) {
  if (level == spdlog::level::warn) return "warn";
  const auto name = spdlog::level::to_string_view(level);
  return {name.data(), name.size()};
}

/// The level in a column of its own, in the text format. Owned by its sink.
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

/// The message as one line of the text format, whatever it quotes.
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

/// One JSON object per line: time (UTC, milliseconds), level, message. Owned by its sink, which calls
/// it under the sink's lock.
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
    std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

}  // namespace

Status initLogging(const LogOptions& options) {
  spdlog::sink_ptr sink;
  if (options.file.empty()) {
    sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  } else {
    PSD_ASSIGN_OR_RETURN(sink, LogFile::open(options.file));
  }
  auto logger = std::make_shared<spdlog::logger>("psd", std::move(sink));
  if (options.format == "json") {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<LevelColumn>('*').add_flag<MessageColumn>('&');
    formatter->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%*%$ %&");
    logger->set_formatter(std::move(formatter));
  }
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  setLogLevel(options.level);
  return {};
}

void setLogLevel(const std::string& level) { spdlog::set_level(spdlog::level::from_str(level)); }

}  // namespace psd
