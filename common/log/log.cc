#include "common/log/log.h"

#include <cerrno>
#include <cstring>
#include <ctime>

#include <nlohmann/json.hpp>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace psd {
namespace {

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
    auto level = spdlog::level::to_string_view(message.level);
    nlohmann::ordered_json line = {{"time", time},
                                   {"level", std::string(level.data(), level.size())},
                                   {"message", std::string(message.payload.data(), message.payload.size())}};
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
    try {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
    } catch (const spdlog::spdlog_ex&) {
      return {ErrorCode::io, "log file '" + options.file + "': " + std::strerror(errno)};
    }
  }
  auto logger = std::make_shared<spdlog::logger>("psd", std::move(sink));
  if (options.format == "json") {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %v");
  }
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  setLogLevel(options.level);
  return {};
}

void setLogLevel(const std::string& level) { spdlog::set_level(spdlog::level::from_str(level)); }

}  // namespace psd
