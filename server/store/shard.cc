#include "server/store/shard.h"

namespace psd {

Version Shard::endUpdate(const AppliedUpdate& update) {
  const Version made = endUpdate();
  for (const UpdateSource& source : update.sources) {
    noteApplied(pushes_, {source.rank, source.incarnation, source.step, made, source.staleness});
  }
  if (log_) logged_ = log_->append(range_.id, update);
  return made;
}

kj::Promise<void> Shard::whenDurable(uint64_t logged) const {
  if (!log_ || logged == 0) return kj::READY_NOW;
  return log_->whenDurable(logged);
}

}  // namespace psd
