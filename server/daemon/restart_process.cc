#include "server/daemon/restart_process.h"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <linux/close_range.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/log/log.h"

namespace psd {
namespace {

constexpr const char* kRestartedVariable = "PSD_RESTARTED";  // in the environment

/// The command line of this process, including the program's name.
std::vector<std::string> ownArguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> arguments;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\0', at), all.size());
    arguments.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  return arguments;
}

}  // namespace

std::vector<std::string> restartArguments(const std::vector<std::string>& before,
                                          const std::vector<std::string>& addresses,
                                          const std::vector<std::string>& pages) {
  std::vector<std::string> arguments;
  for (size_t i = 0; i < before.size(); i++) {
    const std::string& argument = before[i];
    if (argument.starts_with("--listen=") || argument.starts_with("--http=")) continue;
    if (argument == "--listen") {
      i++;
      continue;
    }
    if (argument == "--http") {  // with an address or without
      if (i + 1 < before.size() && !before[i + 1].starts_with("-")) i++;
      continue;
    }
    arguments.push_back(argument);
  }
  for (const std::string& address : addresses) arguments.push_back("--listen=" + address);
  for (std::string page : pages) {
    // Pages are URLs; the flag takes an address.
    for (const auto& [shown, address] : {std::pair("http://", "tcp://"), std::pair("https://", "tls://")}) {
      if (page.starts_with(shown)) page = address + page.substr(std::string_view(shown).size());
    }
    if (page.ends_with("/") && !page.starts_with("unix:")) page.pop_back();
    arguments.push_back("--http=" + page);
    break;  // the flag takes one address
  }
  return arguments;
}

bool wasRestarted() { return std::getenv(kRestartedVariable) != nullptr; }

void restartProcess(const std::vector<std::string>& addresses, const std::vector<std::string>& pages) {
  const std::vector<std::string> arguments = restartArguments(ownArguments(), addresses, pages);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  flushLog();
  // All descriptors close on exec, which releases addresses and folder locks.
  syscall(SYS_close_range, 3u, ~0u, static_cast<unsigned>(CLOSE_RANGE_CLOEXEC));
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  setenv(kRestartedVariable, "1", 1);
  execv("/proc/self/exe", argv.data());
  spdlog::error("cannot restart: exec failed");
  flushLog();
  std::_Exit(1);
}

}  // namespace psd
