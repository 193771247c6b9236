#pragma once

#include <optional>
#include <string>
#include <utility>

#include <kj/async.h>

#include "common/status/status.h"

namespace psd {

/// What ends: the run, or only this daemon.
enum class EndOf {
  run,     ///< trainers end too
  daemon,  ///< another daemon resumes with the model: trainers wait for it
};

/// Notifies trainers of the daemon's end.
struct EndNotice {
  std::string reason;
  bool restarting = false;
};

/// Progress of the daemon's shutdown: requested, trainers notified, done. Owned by the control loop's thread.
class DaemonEnd final {
 public:
  DaemonEnd()
      : requested_(requestedPair_.promise.fork()),
        notified_(noticePair_.promise.fork()),
        outcome_(outcomePair_.promise.fork()) {}

  /// Requests the shutdown, once; the first reason is kept. EndOf::run may still replace EndOf::daemon until
  /// trainers are notified. `trainersIn`: trainers are joined (for the log). Returns whether this call was
  /// the first. The caller then calls begin().
  bool request(std::string reason, EndOf what, bool trainersIn);
  /// Resolves whenBegun(): the preparations are done.
  void begin() { requestedPair_.fulfiller->fulfill(); }
  kj::Promise<void> whenBegun() { return requested_.addBranch(); }

  bool requested() const { return reason_.has_value(); }
  /// Whether the daemon ends so that another one resumes.
  bool restarting() const { return requested() && what_ == EndOf::daemon; }
  /// The error for calls after the request. A trainer that is to return retries, and finds the next daemon.
  Error error() const;

  /// Notifies the trainers.
  void notifyTrainers();
  /// Resolves when trainers are to be notified.
  kj::Promise<EndNotice> whenNotified() { return notified_.addBranch(); }

  /// The daemon's last work, saving, is done.
  void setOutcome(Status outcome) { outcomePair_.fulfiller->fulfill(std::move(outcome)); }
  /// Resolves with the result of the daemon's last work.
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
