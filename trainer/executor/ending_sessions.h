#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "trainer/executor/daemon_session.h"
#include "trainer/executor/task_threads.h"

namespace psd {

/// Sessions with the daemon whose trainers are gone, until what they were at has ended: all of them side by
/// side, on one thread, so that many that wait for a daemon keep none waiting that does not. Thread-safe, but
/// for its end.
class EndingSessions {
 public:
  EndingSessions();
  /// Returns when all have ended.
  ~EndingSessions();

  void add(std::unique_ptr<DaemonSession> session);
  size_t size() const;

 private:
  /// Lets sessions end until there is none.
  void endAll();
  /// Drops the sessions that have ended. False: there is none left.
  bool endSome();

  mutable std::mutex mutex_;  // guards the sessions
  std::vector<std::unique_ptr<DaemonSession>> sessions_;
  TaskThreads thread_;  // last: it uses the others
};

}  // namespace psd
