#include "server/tools/hook.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iterator>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/text/quantity.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kPoll{10};

std::vector<std::string> environmentWith(const std::map<std::string, std::string>& added) {
  std::vector<std::string> all;
  for (char** each = environ; *each != nullptr; each++) {
    const std::string entry = *each;
    if (!added.contains(entry.substr(0, entry.find('=')))) all.push_back(entry);
  }
  for (const auto& [name, value] : added) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointersTo(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Starts the command as the leader of its process group; 0 with errno set if it cannot.
pid_t start(const std::string& command, const std::map<std::string, std::string>& added) {
  std::vector<std::string> words = {"sh", "-c", command}, environment = environmentWith(added);
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_init(&actions);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  sigset_t ignored;  // by this program
  sigemptyset(&ignored);
  for (const int signal : {SIGPIPE, SIGXFSZ}) sigaddset(&ignored, signal);
  posix_spawnattr_setsigdefault(&attributes, &ignored);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, "/bin/sh", &actions, &attributes, pointersTo(words).data(),
                                 pointersTo(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  errno = failed;
  return failed == 0 ? pid : 0;
}

/// While it exists, the signals that end this program also kill the process group of the hook.
class HookSignals {
 public:
  explicit HookSignals(pid_t hook) {
    running() = hook;
    struct sigaction action = {};
    action.sa_handler = [](int signal) {
      ::kill(-running(), SIGKILL);
      ::signal(signal, SIG_DFL);
      ::raise(signal);
    };
    for (size_t i = 0; i < std::size(kSignals); i++) ::sigaction(kSignals[i], &action, &before_[i]);
  }
  ~HookSignals() {
    for (size_t i = 0; i < std::size(kSignals); i++) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  HookSignals(const HookSignals&) = delete;
  HookSignals& operator=(const HookSignals&) = delete;

 private:
  static constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP};
  /// The process group of the hook.
  static volatile pid_t& running() {
    static volatile pid_t group = 0;
    return group;
  }

  struct sigaction before_[std::size(kSignals)];
};

}  // namespace

Status runHook(const std::string& command, const std::map<std::string, std::string>& environment,
               std::chrono::milliseconds timeout) {
  const pid_t pid = start(command, environment);
  if (pid == 0) {
    return {ErrorCode::io, fmt::format("hook '{}': cannot be started: {}", command, std::strerror(errno))};
  }
  const HookSignals signals(pid);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  int state = 0;
  for (pid_t ended = 0; ended != pid;) {
    ended = ::waitpid(pid, &state, WNOHANG);
    if (ended < 0 && errno != EINTR) {
      return {ErrorCode::io, fmt::format("hook '{}': its end is unknown: {}", command, std::strerror(errno))};
    }
    if (ended == pid) break;
    if (std::chrono::steady_clock::now() >= deadline) {
      ::kill(-pid, SIGKILL);
      ::waitpid(pid, &state, 0);
      return {ErrorCode::deadlineExceeded, fmt::format("hook '{}': killed after {}", command,
                                                       durationText(std::chrono::duration<double>(timeout)))};
    }
    std::this_thread::sleep_for(kPoll);
  }
  if (WIFSIGNALED(state)) {
    return {ErrorCode::io, fmt::format("hook '{}': ended by signal {}", command, WTERMSIG(state))};
  }
  if (const int status = WEXITSTATUS(state); status != 0) {
    return {ErrorCode::io, fmt::format("hook '{}': exit status {}", command, status)};
  }
  return {};
}

}  // namespace psd
