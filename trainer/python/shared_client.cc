#include "trainer/python/shared_client.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include "trainer/python/errors.h"

namespace nb = nanobind;

namespace psd::python {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSignalInterval{50};
constexpr std::chrono::milliseconds kPollInterval{1};
/// How long close() waits for the calls of other threads to end. The client's destructor then waits for its
/// goodbye.
constexpr std::chrono::milliseconds kEndTime{5000};
/// How long close() waits for the calls of other threads after a signal, so that Ctrl-C ends the program at
/// once.
constexpr std::chrono::milliseconds kEndTimeAfterSignal{100};

/// For a destructor, which cannot throw: whether no Ctrl-C is pending; a pending one stays pending.
bool noInterruptPending() {
  if (PyOS_InterruptOccurred() == 0) return true;
  PyErr_SetInterrupt();
  return false;
}

}  // namespace

bool pythonIsFinalizing() {
  // Looked up at run time, since a stable-ABI module supports versions of Python with either name.
  static const auto isFinalizing = [] {
    void* found = dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (found == nullptr) found = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");  // before Python 3.13
    return reinterpret_cast<int (*)()>(found);
  }();
  return isFinalizing != nullptr && isFinalizing() != 0;
}

void blockIfPythonIsFinalizing() {
  while (pythonIsFinalizing()) std::this_thread::sleep_for(std::chrono::hours(1));
}

bool handleSignals() {
  blockIfPythonIsFinalizing();
  const nb::gil_scoped_acquire held;
  return PyErr_Occurred() == nullptr && PyErr_CheckSignals() == 0;
}

SharedClient::SharedClient(ClientOptions options) : process_(getpid()) {
  options.keepWaiting = handleSignals;
  auto client = [&options] {
    const Unlocked unlocked;
    return Client::connect(options);
  }();
  throwPending();
  client_ = std::shared_ptr<Client>(take(std::move(client)).release(), [held = held_](Client* last) {
    delete last;  // this ends all calls that use the caller's memory
    held->calls.clear();
  });
}

SharedClient::~SharedClient() {
  if (isAnotherProcess()) {
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory the process ends
    new std::shared_ptr<Client>(client_);  // leaked: threads that do not exist here may hold its lock
    return;
  }
  end(noInterruptPending);
}

bool SharedClient::isAnotherProcess() const { return getpid() != process_; }

void SharedClient::checkUsable() const {
  if (isAnotherProcess()) {
    raise(
        {ErrorCode::invalidArgument,
         fmt::format("this client belongs to process {}; a process that was forked makes a client of its own",
                     process_)});
  }
  if (!client_) raise({ErrorCode::invalidArgument, "this client is closed"});
}

void SharedClient::throwPending() {
  endedBySignal_ = PyErr_Occurred() != nullptr;
  if (endedBySignal_) throw nb::python_error();
}

void SharedClient::holdUntil(std::function<bool()> finished) {
  if (isAnotherProcess()) {
    new std::function<bool()>(std::move(finished));  // leaked: its call's threads do not exist here
    return;
  }
  const std::lock_guard lock(held_->mutex);
  held_->calls.push_back(std::move(finished));
}

SharedClient::Calls SharedClient::Held::takeFinished() {
  Calls unfinished, finished;
  {
    const std::lock_guard lock(mutex);
    unfinished.swap(calls);
  }
  for (auto call = unfinished.begin(); call != unfinished.end();) {
    const auto next = std::next(call);
    if ((*call)()) finished.splice(finished.end(), unfinished, call);
    call = next;
  }
  const std::lock_guard lock(mutex);
  calls.splice(calls.begin(), unfinished);
  return finished;
}

void SharedClient::interrupt() {
  checkUsable();
  *interrupted_ = true;
  client_->interrupt();
}

std::function<bool()> SharedClient::keepWaiting() const {
  return [interrupted = interrupted_] { return !*interrupted && handleSignals(); };
}

void SharedClient::close() {
  bool raised = false;
  end([&raised] {
    raised = PyErr_CheckSignals() != 0;
    return !raised;
  });
  throwPending();
}

void SharedClient::end(const std::function<bool()>& keepWaiting) {
  if (!client_ || isAnotherProcess()) return;
  interrupt();
  std::shared_ptr<Client> last = std::move(client_);
  const auto until = Clock::now() + (endedBySignal_ ? kEndTimeAfterSignal : kEndTime);
  const bool withinCall = Unlocked::depth > 0;  // in a callback, or in the garbage collector that it has run
  bool over = withinCall;
  while (!over && Clock::now() < until) {
    const Unlocked unlocked;
    const auto piece = std::min(until, Clock::now() + kSignalInterval);
    do {
      (void)held_->takeFinished();
      over = last.use_count() == 1 && held_->isEmpty();
      if (!over) std::this_thread::sleep_for(kPollInterval);
    } while (!over && Clock::now() < piece);
    if (over) break;
    const nb::gil_scoped_acquire acquired;
    if (!keepWaiting()) break;
  }
  const Unlocked unlocked;
  last = nullptr;
}

}  // namespace psd::python
