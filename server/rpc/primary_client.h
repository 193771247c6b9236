#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include "common/auth/credentials.h"
#include "common/wire/stop_signal.h"
#include "server/group/primary_connection.h"

namespace psd {

/// A standby's connection to its primary over Cap'n Proto. Thread-safe.
class PrimaryClient final : public PrimaryConnection {
 public:
  /// `attempt`: how long connecting and logging in may take.
  PrimaryClient(PrimaryDial dial, Credentials credentials, std::chrono::milliseconds attempt);
  ~PrimaryClient() noexcept override;
  void stop() override;

 private:
  /// How one attempt ended.
  struct End {
    ConnectionEnd how = ConnectionEnd::broken;
    Status why;
    bool reached = false;  ///< somebody said who it is, or nobody can
    bool answers = false;  ///< somebody is there who cannot be talked to
  };
  void run();
  /// Attempts at all addresses; `sink`: to follow, else to find out who is there.
  End attempt(bool sink);
  End attemptAt(const Address& address, bool sink);

  const PrimaryDial dial_;
  const Credentials credentials_;
  const std::chrono::milliseconds attempt_;
  bool followed_;  // the thread's: the primary has taken this follower, or is not to

  wire::StopSignal stop_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace psd
