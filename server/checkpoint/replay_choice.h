#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "server/checkpoint/log_format.h"

namespace psd {

/// Selects, by rank, the updates that a replay applies. Updates are independent: the log holds a push's
/// gradient as the optimizer received it, so the gradients of other ranks stay as they were computed, from
/// parameters that included the omitted pushes. Owned by one thread.
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
  /// Whether the update is to be applied. An Error if an update combines several pushes and only some are
  /// chosen: the log holds the combined gradient of a round, not the individual ones.
  Result<bool> takes(const LogRecord& update);
  /// An Error if a chosen rank took part in no update.
  Status checkSeen() const;

 private:
  /// Whether pushes of the rank are chosen.
  bool wants(Rank rank) const { return (ranks_.count(rank) > 0) == (what_ == What::only); }

  What what_ = What::all;
  std::set<Rank> ranks_;
  std::set<Rank> seen_;  // ranks of all updates passed to takes()
};

/// "--without" or "--only", for error messages.
std::string_view flagOf(ReplayChoice::What what);

}  // namespace psd
