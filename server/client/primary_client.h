#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "common/auth/credentials.h"
#include "common/wire/stop_signal.h"
#include "server/cluster/primary_connection.h"

namespace psd {

/// A standby's Cap'n Proto connection to its primary. Thread-safe.
class PrimaryClient final : public PrimaryConnection {
 public:
  /// `attempt`: time limit for connecting and logging in.
  PrimaryClient(PrimaryDial dial, Credentials credentials, std::chrono::milliseconds attempt);
  ~PrimaryClient() noexcept override;
  void stop() override;

 private:
  /// How one attempt ended.
  struct End {
    ConnectionEnd how = ConnectionEnd::broken;
    Status why;
    bool reached = false;  ///< a daemon identified itself, or no process is left to do so
    bool answers = false;  ///< a process answers but refuses or cannot be understood
  };
  void run();
  /// Tries all addresses; `sink`: to follow, else to find out which daemon is there.
  End attempt(bool sink);
  End attemptAt(const Address& address, bool sink);

  const PrimaryDial dial_;
  const Credentials credentials_;
  const std::chrono::milliseconds attempt_;
  bool accepted_;  // the thread's: the primary accepted this follower, or it is not to follow

  wire::StopSignal stop_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace psd
