#pragma once

#include <functional>
#include <set>

#include <kj/async.h>

#include "server/coordination/hosting.h"

namespace psd {

/// Saves the departed ranks for the next daemon. Owned by the control loop's thread.
class DepartedRanks {
 public:
  explicit DepartedRanks(Hosting& hosting) : hosting_(hosting) {}

  /// Sets the ranks saved by the previous daemon.
  void recall(std::set<Rank> ranks) { kept_ = std::move(ranks); }
  /// Starts to save them and calls `then` once the newest set is saved or has failed (logged); immediately if
  /// nothing has changed.
  void keep(const Departed& departed, std::function<void()> then);
  /// Saves nothing from now on.
  void close() { closed_ = true; }
  /// Resolves once the current ranks are saved, or saving has failed.
  kj::Promise<void> whenKept() { return done_.addBranch(); }

 private:
  Hosting& hosting_;
  std::set<Rank> kept_;  // saved once whenKept() resolves
  bool closed_ = false;
  kj::ForkedPromise<void> done_ = kj::Promise<void>(kj::READY_NOW).fork();
};

}  // namespace psd
