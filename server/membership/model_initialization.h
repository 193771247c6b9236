#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "server/membership/roster.h"

namespace psd {

/// Initialization of the model: the first trainer to join is the initializer; if it departs before it
/// finishes, the next waiting trainer takes over. Once the values are complete there is no initializer, and
/// once they are saved, if configured, all trainers may start. Pure, like Roster.
class ModelInitialization {
 public:
  /// A trainer's role until the model is initialized.
  enum class Role { initialize, wait, go };

  /// `ready`: the model is initialized already (from a file).
  explicit ModelInitialization(bool ready = false) : complete_(ready), ready_(ready) {}

  /// All trainers may start.
  bool ready() const { return ready_; }
  /// The values are complete.
  bool complete() const { return complete_; }
  /// The initializer.
  std::optional<SessionId> initializer() const { return initializer_; }

  Role join(SessionId session);
  /// The role of a joined trainer.
  Role roleOf(SessionId session) const;
  /// The initializer is done. False if `session` is not the initializer.
  bool complete(SessionId session);
  /// Call after complete(): all trainers may start.
  void open();
  /// A trainer has departed. Returns the new initializer, if that changed.
  std::optional<SessionId> depart(SessionId session);
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  bool complete_;
  bool ready_;
  std::optional<SessionId> initializer_;
  std::set<SessionId> waiting_;  // in the order of joining
};

}  // namespace psd
