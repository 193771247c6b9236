#pragma once

#include <optional>
#include <string>
#include <utility>

#include <kj/async.h>

#include "common/status/status.h"

namespace psd {

/// What becomes of the run when the daemon ends.
enum class EndOf {
  run,     ///< trainers end too
  daemon,  ///< another daemon is to go on with the model: trainers wait for it
};

/// What trainers are told of the daemon's end.
struct EndNotice {
  std::string reason;
  bool comesBack = false;
};

/// How far the daemon's end has come: requested, told to the trainers, over. Owned by the control loop's
/// thread.
class DaemonEnd final {
 public:
  DaemonEnd()
      : requested_(requestedPair_.promise.fork()),
        notified_(noticePair_.promise.fork()),
        outcome_(outcomePair_.promise.fork()) {}

  /// Begins the end, once; the first reason stands. EndOf::run may still take the place of EndOf::daemon,
  /// until trainers were told. `trainersIn`: some are, for the log. Gives whether this call began it. begin()
  /// is to follow.
  bool request(std::string reason, EndOf what, bool trainersIn);
  /// Resolves whenBegun(): what comes first is done.
  void begin() { requestedPair_.fulfiller->fulfill(); }
  kj::Promise<void> whenBegun() { return requested_.addBranch(); }

  bool requested() const { return reason_.has_value(); }
  /// True if the daemon ends for another one to go on.
  bool restarting() const { return requested() && what_ == EndOf::daemon; }
  /// What a caller is told that comes too late. Who is to come back tries again, and finds the next daemon.
  Error error() const;

  /// Tells the trainers.
  void notifyTrainers();
  /// Resolves when trainers are to be told.
  kj::Promise<EndNotice> whenNotified() { return notified_.addBranch(); }

  /// The daemon's last work, saving, is over.
  void tellOutcome(Status outcome) { outcomePair_.fulfiller->fulfill(std::move(outcome)); }
  /// Resolves with what came of the daemon's last work.
  kj::Promise<Status> whenOutcome() { return outcome_.addBranch(); }

 private:
  std::optional<std::string> reason_;
  EndOf what_ = EndOf::run;
  bool toldTrainers_ = false;
  kj::PromiseFulfillerPair<void> requestedPair_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> requested_;
  kj::PromiseFulfillerPair<EndNotice> noticePair_ = kj::newPromiseAndFulfiller<EndNotice>();
  kj::ForkedPromise<EndNotice> notified_;
  kj::PromiseFulfillerPair<Status> outcomePair_ = kj::newPromiseAndFulfiller<Status>();
  kj::ForkedPromise<Status> outcome_;
};

}  // namespace psd
