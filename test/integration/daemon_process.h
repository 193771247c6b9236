#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/client/admin_client.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/support/test_device.h"

namespace psd::testing {

/// psd in a process of its own, on a Unix socket. Killed by the destructor. Owned by one thread.
class DaemonProcess {
 public:
  explicit DaemonProcess(const TempDir& folder) : folder_(folder) {}
  ~DaemonProcess() { kill(SIGKILL); }

  std::string address() const { return "unix://" + folder_.file("psd.sock"); }

  /// Uses testDevice() if `settings` name no devices. `configFile` empty: none.
  void start(const std::vector<std::string>& settings, const std::string& configFile = {}) {
    std::vector<std::string> words = {program(), "--listen", address()};
    const auto isDevices = [](const std::string& setting) { return setting.starts_with("devices="); };
    if (std::ranges::none_of(settings, isDevices)) words.insert(words.end(), {"--device", testDevice()});
    if (!configFile.empty()) words.insert(words.end(), {"--config", configFile});
    for (const std::string& setting : settings) {
      words.push_back("--set");
      words.push_back(setting);
    }
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string errors = folder_.file("psd.err");
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      const int fd = open(errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
      dup2(fd, STDERR_FILENO);
      std::signal(SIGXFSZ, SIG_IGN);  // setFileBytesMax()
      if (descriptorsMax_) {
        const rlimit limit{*descriptorsMax_, *descriptorsMax_};
        setrlimit(RLIMIT_NOFILE, &limit);
      }
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    for (int i = 0; i < 6000 && !answers(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    INFO(readFile(errors));
    REQUIRE(answers());
  }

  /// After SIGSTOP, returns when none of its threads runs any more.
  void signal(int signal) {
    if (pid_ <= 0) return;
    ::kill(pid_, signal);
    siginfo_t stopped;
    if (signal == SIGSTOP) waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WEXITED | WNOWAIT);
  }
  /// Returns the exit status, or −1 if a signal ended it.
  int kill(int signal) {
    this->signal(signal);
    return wait();
  }

  /// Waits until the daemon exits, and returns its exit status, or −1 if a signal ended it; ctest bounds the
  /// wait.
  int wait() {
    if (pid_ <= 0) return -1;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  /// Limits the open files of the next process that is started.
  void setDescriptorsMax(rlim_t descriptors) { descriptorsMax_ = descriptors; }

  /// From now on no file may grow beyond that many bytes, as on a full disk.
  void setFileBytesMax(rlim_t bytes) const {
    const rlimit limit{bytes, RLIM_INFINITY};
    REQUIRE(prlimit(pid_, RLIMIT_FSIZE, &limit, nullptr) == 0);
  }

  /// The status document, once `condition` holds for it; waits at most a minute.
  template <class Condition>
  nlohmann::ordered_json statusWhen(Condition condition) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    nlohmann::ordered_json now = status();
    while (!condition(now) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      now = status();
    }
    INFO(now.dump());
    REQUIRE(condition(now));
    return now;
  }
  /// The status document's `durability`, once `reached` holds for it; waits at most a minute.
  template <class Condition>
  nlohmann::ordered_json until(Condition reached) const {
    return statusWhen([&](const auto& status) { return reached(status["durability"]); })["durability"];
  }

  nlohmann::ordered_json status() const {
    auto text = fetchStatus(std::chrono::seconds(60));
    PSD_REQUIRE_OK(text);
    return nlohmann::ordered_json::parse(*text);
  }
  /// Makes it reload its configuration file.
  void reload() const {
    PSD_REQUIRE_OK(std::async(std::launch::async, [&] {
                     return reloadDaemon(parsedAddress(), std::chrono::minutes(1));
                   }).get());
  }
  std::string errors() const {
    untilLogWritten();
    return readFile(folder_.file("psd.err"));
  }
  /// Waits at most a minute until standard error contains the text.
  void untilLogged(const std::string& text) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (errors().find(text) == std::string::npos) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  /// Returns once the thread that writes the daemon's log has written everything logged so far.
  void untilLogWritten() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    std::error_code gone;
    const std::filesystem::directory_iterator tasks("/proc/" + std::to_string(pid_) + "/task", gone);
    for (auto task = begin(tasks); !gone && task != end(tasks); task.increment(gone)) {
      std::string comm, state;
      std::getline(std::ifstream(task->path() / "comm"), comm);
      do {
        std::getline(std::ifstream(task->path() / "stat"), state);
        REQUIRE(std::chrono::steady_clock::now() < deadline);
      } while (comm == "psd-messages" && state.find(") R ") != std::string::npos);
    }
  }
  static std::string program() {
    const char* const path = std::getenv("PSD_BIN");
    REQUIRE(path != nullptr);
    return path;
  }
  bool answers() const { return fetchStatus(std::chrono::seconds(5)).ok(); }
  /// On another thread: the caller's may have an event loop of its own.
  Result<std::string> fetchStatus(std::chrono::milliseconds timeout) const {
    return std::async(std::launch::async, [&] { return fetchStatusJson(parsedAddress(), timeout); }).get();
  }
  Address parsedAddress() const { return parseAddress(address()).value(); }

  const TempDir& folder_;
  std::optional<rlim_t> descriptorsMax_;
  pid_t pid_ = 0;
};

}  // namespace psd::testing
