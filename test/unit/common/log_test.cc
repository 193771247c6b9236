#include "common/log/log.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <regex>
#include <sstream>

#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace psd::log_test {
namespace {

using testing::readFile;
using testing::TempDir;

std::vector<std::string> linesOf(const std::string& path) {
  std::istringstream text(readFile(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

/// Logs into a file of its own, and to standard error again at its end.
struct LogFile {
  LogFile(const std::string& format, const std::string& level) {
    PSD_REQUIRE_OK(initLogging({.level = level, .format = format, .file = path}));
  }
  ~LogFile() { static_cast<void>(initLogging({})); }

  TempDir folder;
  const std::string path = folder.file("psd.log");
};

TEST_CASE("a message is one line of bounded length, whatever it quotes") {
  const bool json = GENERATE(false, true);
  const LogFile log(json ? "json" : "text", "info");
  spdlog::warn("refused {}: {}", "a\nb\x1b[2J \xff", std::string(2 << 20, 'x'));
  spdlog::warn("caf\u00e9");
  const auto lines = linesOf(log.path);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].size() < kMessageBytesMax + 200);
  CHECK_THAT(lines[0], Catch::EndsWith(json ? "xxx...\"}" : "xxx..."));
  CHECK_THAT(lines[0],
             Catch::Contains(json ? "refused a\\nb\\u001b[2J \xef\xbf\xbd: x" : "refused a?b?[2J ?: x"));
  CHECK_THAT(lines[1], Catch::Contains("caf\u00e9"));
}

TEST_CASE("every line of the JSON format is an object with time, level and message") {
  const LogFile log("json", "debug");
  const std::vector<std::string> messages = {"plain",
                                             "with \"quotes\" and \\",
                                             "two\nlines",
                                             "tab\t and caf\xc3\xa9",
                                             std::string("nul \0 in it", 11),
                                             ""};
  for (const std::string& message : messages) spdlog::warn("{}", message);
  spdlog::info("not UTF-8: {}", "\xff\xfe");
  const auto lines = linesOf(log.path);
  REQUIRE(lines.size() == messages.size() + 1);
  for (size_t i = 0; i < lines.size(); i++) {
    INFO(lines[i]);
    const auto line = nlohmann::json::parse(lines[i]);
    REQUIRE(line.size() == 3);
    CHECK(std::regex_match(line.at("time").get<std::string>(),
                           std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")));
    CHECK(line.at("level") == (i < messages.size() ? "warn" : "info"));
    if (i < messages.size()) {
      CHECK(line.at("message") == messages[i]);
    }
  }
}

TEST_CASE("the text format has time, level and message") {
  const LogFile log("text", "info");
  spdlog::error("shard {} is gone", 3);
  spdlog::warn("shard {} is late", 4);
  const auto lines = linesOf(log.path);
  REQUIRE(lines.size() == 2);
  INFO(lines[0]);
  CHECK_THAT(lines[1], Catch::EndsWith(" warn  shard 4 is late"));
  CHECK(std::regex_match(lines[0],
                         std::regex(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} error shard 3 is gone)")));
}

TEST_CASE("messages below the level are left out, and the level can change") {
  const LogFile log("text", "warn");
  spdlog::info("one");
  spdlog::warn("two");
  setLogLevel("debug");
  spdlog::trace("three");
  spdlog::debug("four");
  setLogLevel("off");
  spdlog::critical("five");
  setLogLevel("info");
  spdlog::info("six");  // also writes out what waits
  const auto lines = linesOf(log.path);
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[0], Catch::EndsWith("two"));
  CHECK_THAT(lines[1], Catch::EndsWith("four"));
  CHECK_THAT(lines[2], Catch::EndsWith("six"));
}

TEST_CASE("a log file is appended to") {
  const TempDir folder;
  for (int run = 0; run < 2; run++) {
    PSD_REQUIRE_OK(initLogging({.file = folder.file("psd.log")}));
    spdlog::info("run {}", run);
    PSD_REQUIRE_OK(initLogging({}));
  }
  CHECK(linesOf(folder.file("psd.log")).size() == 2);
}

TEST_CASE("a log file that cannot be opened is an error with path and reason") {
  const TempDir folder;
  testing::writeFile(folder.file("file"), "");
  const std::string path = folder.file("file/psd.log");
  Status status = initLogging({.file = path});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::invalidArgument);
  CHECK(status.message() == "log.file: '" + path + "': " + std::strerror(ENOTDIR));

  // Where a folder cannot even be looked for.
  REQUIRE(symlink("loop", folder.file("loop").c_str()) == 0);
  const std::string around = folder.file("loop/logs/psd.log");
  CHECK(initLogging({.file = around}).message() == "log.file: '" + around + "': " + std::strerror(ELOOP));

  Status folderStatus = initLogging({.file = folder.path()});
  REQUIRE_FALSE(folderStatus.ok());
  CHECK(folderStatus.message() == "log.file: '" + folder.path() + "': " + std::strerror(EISDIR));

  const std::string absent = folder.file("absent");
  Status absentStatus = initLogging({.file = absent + "/psd.log"});
  REQUIRE_FALSE(absentStatus.ok());
  CHECK(absentStatus.message() == "log.file: '" + absent + "/psd.log': there is no folder '" + absent + "'");
  CHECK_FALSE(std::filesystem::exists(absent));
}

}  // namespace
}  // namespace psd::log_test
