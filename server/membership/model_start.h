#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "server/membership/roster.h"

namespace psd {

/// How the model gets its first values: the first trainer to join brings them; when it is gone before
/// it was done, the next one in line is asked. Pure, like Roster.
class ModelStart {
 public:
  /// What one trainer is to do.
  enum class Role { bringValues, wait, go };

  /// `ready`: the values are there already (from a file).
  explicit ModelStart(bool ready = false) : ready_(ready) {}

  bool ready() const { return ready_; }
  /// The trainer that is bringing the values.
  std::optional<SessionId> bringer() const { return bringer_; }

  Role join(SessionId session);
  /// The bringer is done; everybody may go. False when `session` is not the bringer.
  bool finish(SessionId session);
  /// A trainer is gone. Names the one that must bring the values now, if that changed.
  std::optional<SessionId> depart(SessionId session);

 private:
  bool ready_;
  std::optional<SessionId> bringer_;
  std::set<SessionId> waiting_;  // in the order of joining
};

}  // namespace psd
