#include "server/daemon/service_manager.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "common/cli/setting.h"

namespace psd {
namespace {

using std::chrono::microseconds;

constexpr microseconds kStateInterval = std::chrono::seconds(1);
constexpr microseconds kExtendEvery = std::chrono::seconds(5), kExtendBy = std::chrono::seconds(30);
constexpr uint64_t kWatchdogMicrosecondsMax = uint64_t{365} * 24 * 3600 * 1'000'000;
constexpr uint64_t kPidMax = uint64_t{1} << 31;

std::optional<Setting> variable(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return Setting{name, text};
}

/// nullopt if no watchdog is set, or if it is for another process.
Result<std::optional<microseconds>> readWatchdog() {
  std::optional<microseconds> watchdog;
  const auto usec = variable("WATCHDOG_USEC"), pid = variable("WATCHDOG_PID");
  if (!usec) return watchdog;
  PSD_ASSIGN_OR_RETURN(const uint64_t most, parseInteger(*usec, 1, kWatchdogMicrosecondsMax));
  if (pid) {
    PSD_ASSIGN_OR_RETURN(const uint64_t whose, parseInteger(*pid, 1, kPidMax));
    if (whose != static_cast<uint64_t>(getpid())) return watchdog;
  }
  watchdog = microseconds(most);
  return watchdog;
}

/// The interval of keep-alives: half of the watchdog's timeout, so that one may be late.
microseconds halfOf(const std::optional<microseconds>& watchdog, microseconds atMost) {
  return watchdog ? std::clamp<microseconds>(*watchdog / 2, microseconds(1), atMost) : atMost;
}

int64_t monotonicMicroseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

}  // namespace

/// Runs the only other thread that uses the socket, which is thread-safe.
class ServiceManager::LongWork {
 public:
  LongWork(std::shared_ptr<const NotifySocket> socket, std::optional<microseconds> watchdog)
      : thread_([socket = std::move(socket), watchdog](const std::stop_token& stop) {
          const std::string lines =
              fmt::format("EXTEND_TIMEOUT_USEC={}{}", kExtendBy.count(), watchdog ? "\nWATCHDOG=1" : "");
          std::mutex mutex;
          std::condition_variable_any never;
          std::unique_lock lock(mutex);
          do {
            if (!socket->tell(lines).ok()) return;  // the owner's next message warns
          } while (!never.wait_for(lock, stop, halfOf(watchdog, kExtendEvery),
                                   [&] { return stop.stop_requested(); }));
        }) {}

 private:
  std::jthread thread_;
};

ServiceManager ServiceManager::ofEnvironment() {
  ServiceManager manager;
  const auto name = variable("NOTIFY_SOCKET");
  if (!name) return manager;
  auto socket = NotifySocket::open(name->text);
  if (!socket.ok()) {
    spdlog::warn("cannot notify the service manager: NOTIFY_SOCKET: {}", socket.message());
    return manager;
  }
  manager.socket_ = std::make_shared<const NotifySocket>(*std::move(socket));
  auto watchdog = readWatchdog();
  if (watchdog.ok()) {
    manager.watchdog_ = *watchdog;
  } else {
    spdlog::warn("no keep-alives for the service manager's watchdog: {}", watchdog.message());
  }
  return manager;
}

void ServiceManager::tell(const std::string& lines) {
  if (!socket_) return;
  const Status told = socket_->tell(lines);
  if (told.ok()) return;
  spdlog::warn("cannot notify the service manager any more: NOTIFY_SOCKET: {}", told.message());
  socket_.reset();
}

void ServiceManager::ready(const std::string& state) {
  sentState_ = state;
  tell("READY=1\nSTATUS=" + state);
}

void ServiceManager::reloading() {
  tell(fmt::format("RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=reloading the configuration",
                   monotonicMicroseconds()));
}

void ServiceManager::stopping() { tell("STOPPING=1"); }

kj::Promise<void> ServiceManager::keepNotifying(kj::Timer& timer, std::function<std::string()> state) {
  if (!socket_) return kj::NEVER_DONE;
  std::string lines = watchdog_ ? "WATCHDOG=1" : "";
  if (std::string now = state(); now != sentState_) {
    lines += (lines.empty() ? "STATUS=" : "\nSTATUS=") + now;
    sentState_ = std::move(now);
  }
  if (!lines.empty()) tell(lines);
  return timer.afterDelay(halfOf(watchdog_, kStateInterval).count() * kj::MICROSECONDS)
      .then([this, &timer, state = std::move(state)]() mutable {
        return keepNotifying(timer, std::move(state));
      });
}

std::shared_ptr<const void> ServiceManager::startLongWork(const std::string& state) {
  sentState_ = state;
  tell("STATUS=" + state);
  if (!socket_) return nullptr;
  try {
    return std::make_shared<LongWork>(socket_, watchdog_);
  } catch (const std::system_error& error) {
    spdlog::warn("cannot ask the service manager for more time: {}", error.what());
    return nullptr;
  }
}

}  // namespace psd
