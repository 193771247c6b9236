#include "common/log/log.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <regex>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log/log_backlog.h"
#include "common/log/log_limit.h"
#include "common/log/log_line.h"
#include "common/os/socket.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace psd::log_test {
namespace {

using testing::readFile;
using testing::TempDir;

constexpr std::chrono::minutes kPatience{1};

std::vector<std::string> linesOf(const std::string& path) {
  REQUIRE(flushLog(kPatience));
  std::istringstream text(readFile(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

/// Logs to a temporary file, and to standard error again when destroyed.
struct LogFile {
  LogFile(const std::string& format, const std::string& level) {
    PSD_REQUIRE_OK(initLogging({.level = level, .format = format, .file = path}));
  }
  ~LogFile() { static_cast<void>(initLogging({})); }

  TempDir folder;
  const std::string path = folder.file("psd.log");
};

TEST_CASE("a message is one line of bounded length, with anything it quotes") {
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
  spdlog::info("six");
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

TEST_CASE("a line of the JSON format has the fields that were passed with it") {
  const LogFile log("json", "info");
  logLine(spdlog::level::warn, {.event = "lost", .rank = 3, .process = "4711@node-3", .step = 812}, "rank {}",
          3);
  logLine(spdlog::level::info, {.event = "checkpoint", .peer = "10.0.0.7:4711", .by = "ada"}, "asked for");
  spdlog::info("plain");
  const auto lines = linesOf(log.path);
  REQUIRE(lines.size() == 3);
  auto first = nlohmann::json::parse(lines[0]);
  first.erase("time");
  CHECK(first == nlohmann::json({{"level", "warn"},
                                 {"message", "rank 3"},
                                 {"event", "lost"},
                                 {"rank", 3},
                                 {"process", "4711@node-3"},
                                 {"step", 812}}));
  const auto second = nlohmann::json::parse(lines[1]);
  CHECK(second["peer"] == "10.0.0.7:4711");
  CHECK(second["by"] == "ada");
  CHECK_FALSE(second.contains("rank"));
  CHECK(nlohmann::json::parse(lines[2]).size() == 3);
}

TEST_CASE("lines caused by a peer without access are limited and counted") {
  const LogFile log("text", "info");
  for (int i = 0; i < 1000; i++) {
    logLine(spdlog::level::warn,
            {.event = "login_refused", .peer = "10.0.0.7:" + std::to_string(i), .limited = true},
            "refused the login of {}", i);
  }
  CHECK(linesOf(log.path).size() == LogLimit::kLinesPerHost);
  CHECK(logLosses().suppressed == 1000 - LogLimit::kLinesPerHost);
  CHECK(logLosses().dropped == 0);
}

/// A log whose file is a pipe.
struct LogPipe {
  LogPipe() {
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    pipe = OwnFd(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(fcntl(pipe.get(), F_SETPIPE_SZ, 4096) >= 4096);
    PSD_REQUIRE_OK(initLogging({.file = path}));
  }
  ~LogPipe() { static_cast<void>(initLogging({})); }

  /// Reads until the text has `end`.
  std::string readTo(const std::string& end) const {
    std::string text;
    char part[4096];
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (text.find(end) == std::string::npos) {
      REQUIRE(std::chrono::steady_clock::now() < until);
      const ssize_t got = read(pipe.get(), part, sizeof part);
      if (got > 0) text.append(part, static_cast<size_t>(got));
      if (got <= 0) std::this_thread::yield();
    }
    return text;
  }

  TempDir folder;
  const std::string path = folder.file("log");
  OwnFd pipe;
};

TEST_CASE(
    "a log whose reader is stalled blocks no thread, drops information first, and counts what it drops") {
  const LogPipe log;
  const std::string filler(1000, 'x');
  for (size_t i = 0; i < 2 * LogBacklog::kBytesMax / filler.size(); i++) spdlog::info("{}", filler);
  spdlog::error("the disk is full");
  CHECK_FALSE(flushLog(std::chrono::milliseconds(1)));
  const uint64_t dropped = logLosses().dropped;
  CHECK(dropped > LogBacklog::kBytesMax / filler.size());

  const std::string text = log.readTo(std::to_string(dropped) + " log lines dropped: ");
  CHECK(text.find("error the disk is full\n") != std::string::npos);
  spdlog::info("read again");
  log.readTo("info  read again\n");
  CHECK(logLosses().dropped == dropped);
}

TEST_CASE("closing a log whose reader is stalled takes no longer than its limit") {
  const LogPipe log;
  for (int i = 0; i < 100; i++) spdlog::info("{}", std::string(1000, 'x'));
  PSD_REQUIRE_OK(initLogging({}));  // hangs if closing waits for the pipe
}

TEST_CASE("lines that the disk rejects are counted, and reported once it accepts lines again") {
  const TempDir folder;
  const std::string path = folder.file("log");
  REQUIRE(symlink("/dev/full", path.c_str()) == 0);
  PSD_REQUIRE_OK(initLogging({.file = path}));
  for (int i = 0; i < 3; i++) {
    spdlog::info("line {}", i);
    REQUIRE(flushLog(kPatience));
  }
  CHECK(logLosses().dropped == 3);
  REQUIRE(unlink(path.c_str()) == 0);
  PSD_REQUIRE_OK(reopenLogFile());
  spdlog::info("room again");
  const auto lines = linesOf(path);
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0], Catch::EndsWith("warn  3 log lines dropped: " + std::string(std::strerror(ENOSPC))));
  CHECK_THAT(lines[1], Catch::EndsWith("room again"));
  PSD_REQUIRE_OK(initLogging({}));
}

/// Redirects standard error to a file.
struct StandardError {
  StandardError() {
    const OwnFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(dup2(file.get(), STDERR_FILENO) == STDERR_FILENO);
  }
  ~StandardError() {
    dup2(before.get(), STDERR_FILENO);
    unsetenv("JOURNAL_STREAM");
    static_cast<void>(initLogging({}));
  }

  TempDir folder;
  const std::string path = folder.file("stderr");
  const OwnFd before{dup(STDERR_FILENO)};
};

TEST_CASE("lines have the journal's priority if standard error is connected to it, and only then") {
  const StandardError error;
  const bool journal = GENERATE(true, false);
  struct stat info {};
  REQUIRE(fstat(STDERR_FILENO, &info) == 0);
  const std::string stream =
      std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino + (journal ? 0 : 1));
  REQUIRE(setenv("JOURNAL_STREAM", stream.c_str(), 1) == 0);
  PSD_REQUIRE_OK(initLogging({.level = "debug"}));
  spdlog::error("e");
  spdlog::warn("w");
  spdlog::info("i");
  spdlog::debug("d");
  const auto lines = linesOf(error.path);
  REQUIRE(lines.size() == 4);
  for (size_t i = 0; i < lines.size(); i++) {
    const std::string line = std::array{"<3>error e", "<4>warn  w", "<6>info  i", "<7>debug d"}[i];
    CHECK((lines[i] == line) == journal);  // the journal has the time
  }
}

TEST_CASE("the last line of a program comes after its log") {
  const StandardError error;
  PSD_REQUIRE_OK(initLogging({}));
  spdlog::info("one");
  printLastLine("psd: two");
  const auto lines = linesOf(error.path);
  REQUIRE(lines.size() == 2);
  CHECK(lines[1] == "psd: two");
}

TEST_CASE("a log file that cannot be opened is an error with path and reason") {
  const TempDir folder;
  testing::writeFile(folder.file("file"), "");
  const std::string path = folder.file("file/psd.log");
  Status status = initLogging({.file = path});
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::invalidArgument);
  CHECK(status.message() == "log.file: '" + path + "': " + std::strerror(ENOTDIR));

  // A path whose lookup fails.
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
