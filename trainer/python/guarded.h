#pragma once

#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include "trainer/python/errors.h"
#include "trainer/python/shared_client.h"

namespace psd::python {

/// A VersionReader or VersionPublisher behind an object of Python. Signals reach Python while a call waits;
/// if a handler raises, the wait ends. Used with the GIL, by any thread.
template <class Object>
class Guarded {
 public:
  /// Connects by `connect(options)`, a Result; throws its error. `what`: for messages, as "follower".
  template <class Connect>
  Guarded(std::string what, ClientOptions options, const Connect& connect)
      : what_(std::move(what)), process_(getpid()) {
    options.keepWaiting = handleSignals;
    auto object = [&] {
      const Unlocked unlocked;
      return connect(options);
    }();
    throwPending();
    object_ = take(std::move(object));
  }
  /// See close(). In a forked process, which does not have the object's threads, it does nothing.
  ~Guarded() {
    if (isAnotherProcess()) {
      // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory the process ends
      new std::shared_ptr<Object>(object_);  // leaked: threads that do not exist here may hold its lock
      return;
    }
    close();
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  /// Runs `work(object)` without the GIL and returns its result.
  template <class Work>
  auto run(const Work& work) {
    if (isAnotherProcess()) {
      raise({ErrorCode::invalidArgument,
             fmt::format("this {} belongs to process {}; a process that was forked makes one of its own",
                         what_, process_)});
    }
    if (!object_) raise({ErrorCode::invalidArgument, fmt::format("this {} is closed", what_)});
    auto result = [&, object = object_]() mutable {
      const Unlocked unlocked;
      const std::shared_ptr<Object> own = std::move(object);  // released without the GIL
      return work(*own);
    }();
    throwPending();
    return result;
  }
  /// Ends the calls of other threads; the last of them destroys the object. No call may follow.
  void close() {
    if (!object_ || isAnotherProcess()) return;
    std::shared_ptr<Object> last = std::move(object_);
    const Unlocked unlocked;
    // Another thread is within a call. Otherwise the end of the object still does its work.
    if (last.use_count() > 1) last->interrupt();
    last = nullptr;
  }

 private:
  static void throwPending() {
    if (PyErr_Occurred() != nullptr) throw nanobind::python_error();
  }
  bool isAnotherProcess() const { return getpid() != process_; }

  const std::string what_;
  const pid_t process_;
  std::shared_ptr<Object> object_;  // null once closed
};

}  // namespace psd::python
