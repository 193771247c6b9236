#include "trainer/cli/stop_signals.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <utility>

#include <semaphore.h>

#include "common/os/end_by_signal.h"

namespace psd {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM};

// Global, since a signal handler has no other access to state.
std::atomic<int> receivedSignal = 0;
static_assert(std::atomic<int>::is_always_lock_free);
sem_t changed;  // posted when a signal arrives or the listener ends
std::atomic<bool> over = false;

void handleSignal(int signal) {
  const int error = errno;
  int none = 0;
  if (receivedSignal.compare_exchange_strong(none, signal)) {
    sem_post(&changed);
  } else {
    endBySignal(signal);
  }
  errno = error;
}

/// Waits for `changed`; false on a timeout after `most`.
bool waitChanged(std::chrono::milliseconds most) {
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  const int64_t nanoseconds = until.tv_nsec + std::chrono::nanoseconds(most).count();
  until.tv_sec += nanoseconds / std::nano::den;
  until.tv_nsec = nanoseconds % std::nano::den;
  int answer = 0;
  while ((answer = sem_timedwait(&changed, &until)) != 0 && errno == EINTR) {
  }
  return answer == 0;
}

}  // namespace

StopSignals::StopSignals(Listener listener) : listener_(std::move(listener)) {
  receivedSignal = 0;
  over = false;
  sem_init(&changed, 0, 0);
  thread_ = std::thread([this] { listen(); });
  struct sigaction action {};
  action.sa_handler = handleSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); i++) sigaction(kSignals[i], &action, &previous_[i]);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); i++) sigaction(kSignals[i], &previous_[i], nullptr);
  over = true;
  sem_post(&changed);
  thread_.join();
  sem_destroy(&changed);
}

void StopSignals::listen() const {
  while (sem_wait(&changed) != 0) {
  }
  if (over) return;
  listener_.onSignal(receivedSignal);
  if (!waitChanged(listener_.timeout)) listener_.onTimeout();
}

int StopSignals::received() const { return receivedSignal; }

}  // namespace psd
