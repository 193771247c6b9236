#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "server/policy/update_policy.h"

namespace psd {

/// What trainers pulled and have not yet pushed for, as delay compensation needs it: of each trainer and
/// shard the newest snapshots, which trainers that pulled the same version share. Thread-safe.
class PulledWeights {
 public:
  /// Kept of a trainer and shard; the next pull lets go of the oldest.
  static constexpr size_t kKept = 4;

  /// Before its first note().
  void admit(SessionId session);
  /// Nothing for one that is not in, such as one that left while it pulled.
  void note(SessionId session, ShardId shard, std::shared_ptr<const ShardSnapshot> pulled);
  /// What the trainer pulled at that version; null where that is not known. It has no more need of older
  /// ones.
  std::shared_ptr<const ShardSnapshot> find(SessionId session, ShardId shard, Version version);
  void forget(SessionId session);

 private:
  using Versions = std::map<Version, std::shared_ptr<const ShardSnapshot>>;

  std::mutex mutex_;  // for few instructions
  std::map<SessionId, std::map<ShardId, Versions>> trainers_;
};

}  // namespace psd
