#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "server/checkpoint/log_format.h"

namespace psd {

/// Of whose pushes a replay makes updates. Each update counts by itself: what a log has of a push is its
/// gradient as the optimizer got it, so others' gradients stay as they were computed, from parameters that
/// the pushes left out were part of. Owned by one thread.
class ReplayChoice {
 public:
  enum class What {
    all,
    without,  ///< these ranks
    only,     ///< these ranks
  };

  ReplayChoice() = default;
  ReplayChoice(What what, std::set<Rank> ranks) : what_(what), ranks_(std::move(ranks)) {}

  bool everything() const { return what_ == What::all; }
  /// Whether the update is to be made. An Error for one of several pushes of which some are to be left out:
  /// the log has what a round made of its gradients, not the gradients.
  Result<bool> takes(const LogRecord& update);
  /// An Error where a rank of the choice had no part in any update.
  Status checkSeen() const;

 private:
  /// Whether the choice takes pushes of the rank.
  bool wants(Rank rank) const { return (ranks_.count(rank) > 0) == (what_ == What::only); }

  What what_ = What::all;
  std::set<Rank> ranks_;
  std::set<Rank> seen_;  // of the updates that takes() was asked of
};

/// "--without" or "--only", for errors.
std::string_view flagOf(ReplayChoice::What what);

}  // namespace psd
