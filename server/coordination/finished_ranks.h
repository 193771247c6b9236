#pragma once

#include <functional>
#include <set>

#include <kj/async.h>

#include "server/coordination/hosting.h"

namespace psd {

/// Keeps which ranks have come and gone for a daemon after this one. Owned by the control loop's thread.
class FinishedRanks {
 public:
  explicit FinishedRanks(Hosting& hosting) : hosting_(hosting) {}

  /// These were kept by a daemon before.
  void recall(std::set<Rank> ranks) { kept_ = std::move(ranks); }
  /// Begins to keep them, and calls `then` when the newest are kept or cannot be, which the log says; at once
  /// where nothing is to be done.
  void keep(const Departed& departed, std::function<void()> then);
  /// Nothing is kept from now on.
  void close() { closed_ = true; }
  /// Resolves once the ranks are kept as of now, or cannot be.
  kj::Promise<void> whenKept() { return done_.addBranch(); }

 private:
  Hosting& hosting_;
  std::set<Rank> kept_;  // by whenKept()
  bool closed_ = false;
  kj::ForkedPromise<void> done_ = kj::Promise<void>(kj::READY_NOW).fork();
};

}  // namespace psd
