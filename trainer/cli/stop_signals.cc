#include "trainer/cli/stop_signals.h"

#include <csignal>

namespace psd {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

// A handler can reach nothing else.
volatile std::sig_atomic_t receivedSignal = 0;

void remember(int signal) { receivedSignal = signal; }

}  // namespace

StopSignals::StopSignals() {
  receivedSignal = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART | SA_RESETHAND;  // the second of a kind finds the default action
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
}

StopSignals::~StopSignals() {
  for (const int signal : kSignals) std::signal(signal, SIG_DFL);
}

int StopSignals::received() const { return receivedSignal; }

}  // namespace psd
