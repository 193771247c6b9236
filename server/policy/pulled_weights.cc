#include "server/policy/pulled_weights.h"

namespace psd {

void PulledWeights::admit(SessionId session) {
  const std::lock_guard lock(mutex_);
  trainers_[session];
}

void PulledWeights::note(SessionId session, ShardId shard, std::shared_ptr<const ShardSnapshot> pulled) {
  {
    const std::lock_guard lock(mutex_);
    const auto trainer = trainers_.find(session);
    if (trainer == trainers_.end()) return;
    Versions& versions = trainer->second[shard];
    const Version version = pulled->version;
    versions.insert_or_assign(version, Kept{std::move(pulled), ++turn_});
    if (versions.size() > kKept) versions.erase(versions.begin());
  }
  budget_->evictForWaiters();
}

bool PulledWeights::evictOldest() {
  std::shared_ptr<const ShardSnapshot> oldest;  // freed after the mutex is unlocked
  const std::lock_guard lock(mutex_);
  Versions* of = nullptr;
  Versions::iterator found;
  for (auto& [session, shards] : trainers_) {
    for (auto& [shard, versions] : shards) {
      for (auto kept = versions.begin(); kept != versions.end(); ++kept) {
        if (of && found->second.turn < kept->second.turn) continue;
        of = &versions;
        found = kept;
      }
    }
  }
  if (!of) return false;
  oldest = std::move(found->second.snapshot);
  of->erase(found);
  return true;
}

std::shared_ptr<const ShardSnapshot> PulledWeights::find(SessionId session, ShardId shard, Version version) {
  const std::lock_guard lock(mutex_);
  const auto trainer = trainers_.find(session);
  if (trainer == trainers_.end()) return nullptr;
  Versions& versions = trainer->second[shard];
  versions.erase(versions.begin(), versions.lower_bound(version));
  return versions.empty() || versions.begin()->first != version ? nullptr : versions.begin()->second.snapshot;
}

void PulledWeights::forget(SessionId session) {
  const std::lock_guard lock(mutex_);
  trainers_.erase(session);
}

}  // namespace psd
