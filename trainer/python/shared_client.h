#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include "trainer/client/api/client.h"

namespace psd::python {

/// Whether the interpreter is finalizing. From then on it terminates threads that acquire the GIL, without
/// unwinding them.
bool pythonIsFinalizing();
/// Does not return if the interpreter is finalizing.
void blockIfPythonIsFinalizing();

/// Without the GIL: runs due signal handlers, if this is Python's main thread; false once one has raised,
/// whose exception is then pending.
bool handleSignals();

/// Releases the GIL.
struct Unlocked {
  Unlocked() { depth++; }
  ~Unlocked() {
    depth--;
    blockIfPythonIsFinalizing();
  }
  nanobind::gil_scoped_release free;
  static inline thread_local int depth = 0;  // of calls that this thread is within
};

/// A Client that Python's objects for calls share. Signals reach Python while a call waits; if a handler
/// raises, the wait ends. Used with the GIL, by any thread.
class SharedClient {
 public:
  /// Connects as Client::connect() does; throws its error.
  explicit SharedClient(ClientOptions options);
  /// See close(). In a forked process, which does not have the client's threads, it does nothing.
  ~SharedClient();

  /// Runs `work(client)` without the GIL and returns its result. Throws if the client is closed or belongs to
  /// another process, and the exception of a signal handler.
  template <class Work>
  auto run(const Work& work) {
    checkUsable();
    Calls finished;  // destroyed with the GIL
    auto result = [&, client = client_]() mutable {
      const Unlocked unlocked;
      finished = held_->takeFinished();
      const std::shared_ptr<Client> own = std::move(client);  // released without the GIL
      return work(*own);
    }();
    throwPending();
    return result;
  }
  /// Keeps the captures of `finished` alive until it returns true, or the client is destroyed. For a call
  /// that no caller waits for.
  void holdUntil(std::function<bool()> finished);

  /// Throws if the client is closed or belongs to another process.
  void checkUsable() const;
  bool isUsable() const { return client_ && !isAnotherProcess(); }
  /// See Client::interrupt().
  void interrupt();
  /// Whether a wait may continue: neither interrupt() nor close() was called, and no signal handler has
  /// raised. For waits of the caller's own within run(). May outlive this object.
  std::function<bool()> keepWaiting() const;
  /// Interrupts and destroys the client, once other threads have left its calls. No call may follow. If a
  /// signal handler raises meanwhile, throws its exception, and the last of these threads destroys the
  /// client.
  void close();

 private:
  using Calls = std::list<std::function<bool()>>;

  /// Calls that no caller waits for. Thread-safe.
  struct Held {
    std::mutex mutex;  // guards the list
    Calls calls;

    Calls takeFinished();
    bool isEmpty() {
      const std::lock_guard lock(mutex);
      return calls.empty();
    }
  };

  bool isAnotherProcess() const;
  /// Throws the exception of a signal handler that ended a wait.
  void throwPending();
  /// See close(); waits while `keepWaiting` returns true.
  void end(const std::function<bool()>& keepWaiting);

  const pid_t process_;
  const std::shared_ptr<std::atomic<bool>> interrupted_ = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<Held> held_ = std::make_shared<Held>();
  std::shared_ptr<Client> client_;  // null once closed
  bool endedBySignal_ = false;      // a signal ended the last call; guarded by the GIL
};

}  // namespace psd::python
