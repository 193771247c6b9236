#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include <kj/async.h>

#include "trainer/client/transport/daemon_connection.h"

namespace psd {

/// Asks a daemon for signs of life in the background, whatever this program does, which renews the lease of a
/// trainer that is in; and tells when there are none. Belongs to the connection's event loop; ends with it.
class SilenceWatch final : private kj::TaskSet::ErrorHandler {
 public:
  /// Calls `fail` when nothing has come for `silence`, or the daemon says that the session is over.
  SilenceWatch(DaemonConnection& connection, std::chrono::milliseconds silence,
               std::function<void(const Error&)> fail);

 private:
  kj::Promise<void> beat(kj::Duration interval);
  void askForLife();
  void taskFailed(kj::Exception&&) override {}  // what breaks the connection shows in the next call

  DaemonConnection& connection_;
  const std::function<void(const Error&)> fail_;
  uint64_t heardBytes_ =
      UINT64_MAX;            // bytes that had come by the last beat; nothing was asked before the first
  uint64_t quietBeats_ = 0;  // beats in a row between which nothing came
  kj::TaskSet asked_;        // signs of life that have not come
  kj::Promise<void> beats_;
};

}  // namespace psd
