#pragma once

#include <cstdint>
#include <functional>

#include <kj/async.h>
#include <kj/timer.h>

#include "server/hosting/daemon.h"
#include "server/loop/background.h"

namespace psd {

/// Asks the lead of a move for its outcome until that is settled. Owned by the control loop's thread.
class OutcomePoll final {
 public:
  /// Handles the lead's answer; resolves with whether it settles the outcome.
  using Handle = std::function<kj::Promise<bool>(MoveOutcome outcome)>;

  /// Both outlive it.
  OutcomePoll(const Daemon& daemon, kj::Timer& timer) : daemon_(daemon), timer_(timer) {}

  /// Starts to ask, in place of any other move. No effect if it asks for this move already.
  void start(uint64_t move, MoveLead lead, Handle handle);

 private:
  kj::Promise<void> poll(uint64_t move, kj::Duration pause);

  const Daemon& daemon_;
  kj::Timer& timer_;
  uint64_t move_ = 0;  // the move asked for; 0: none
  MoveLead lead_;
  Handle handle_;
  Background background_;
  kj::Promise<void> asking_ = kj::READY_NOW;  // last: it uses all of the above
};

}  // namespace psd
