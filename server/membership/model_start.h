#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "server/membership/roster.h"

namespace psd {

/// How the model gets its first values: the first trainer to join brings them; when it is gone before
/// it was done, the next one in line is asked. Once they are complete nobody is asked any more, and once they
/// are saved, where that is to be, everybody may go. Pure, like Roster.
class ModelStart {
 public:
  /// What one trainer does until the model has values.
  enum class Role { bringValues, wait, go };

  /// `ready`: the model has values already (from a file).
  explicit ModelStart(bool ready = false) : complete_(ready), ready_(ready) {}

  /// Everybody may go.
  bool ready() const { return ready_; }
  /// The values are there.
  bool complete() const { return complete_; }
  /// The trainer that is bringing the values.
  std::optional<SessionId> bringer() const { return bringer_; }

  Role join(SessionId session);
  /// The role of a trainer that joined.
  Role roleOf(SessionId session) const;
  /// The bringer is done. False when `session` is not the bringer.
  bool complete(SessionId session);
  /// Comes after complete(): everybody may go.
  void open() { ready_ = true; }
  /// A trainer is gone. Names the one that must bring the values now, if that changed.
  std::optional<SessionId> depart(SessionId session);

 private:
  bool complete_;
  bool ready_;
  std::optional<SessionId> bringer_;
  std::set<SessionId> waiting_;  // in the order of joining
};

}  // namespace psd
