#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "trainer/executor/daemon_session.h"
#include "trainer/executor/task_threads.h"

namespace psd {

/// Daemon sessions whose trainers have disconnected, until their calls in progress have ended. One thread
/// polls all of them, so that sessions that wait for a daemon do not delay the others. Thread-safe except for
/// destruction.
class EndingSessions {
 public:
  EndingSessions();
  /// Waits until all sessions have ended.
  ~EndingSessions();

  void add(std::unique_ptr<DaemonSession> session);
  size_t size() const;

 private:
  /// Polls until no session is left.
  void pollUntilEmpty();
  /// Drops the sessions that have ended; returns whether any is left.
  bool pollOnce();

  mutable std::mutex mutex_;  // guards sessions_
  std::vector<std::unique_ptr<DaemonSession>> sessions_;
  TaskThreads thread_;  // last: its task uses the members above
};

}  // namespace psd
