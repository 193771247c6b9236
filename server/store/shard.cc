#include "server/store/shard.h"

#include <algorithm>

namespace psd {

Version Shard::endUpdate(const AppliedUpdate& update) {
  const Version made = endUpdate();
  for (const UpdateSource& source : update.sources) {
    const AppliedPush push{source.rank, source.incarnation, source.step, made, source.staleness};
    auto known = std::find_if(pushes_.begin(), pushes_.end(),
                              [&](const AppliedPush& other) { return other.rank == source.rank; });
    if (known == pushes_.end()) {
      pushes_.push_back(push);
    } else {
      *known = push;
    }
  }
  if (log_) logged_ = log_->append(range_.id, update);
  return made;
}

kj::Promise<void> Shard::whenDurable(uint64_t logged) const {
  if (!log_ || logged == 0) return kj::READY_NOW;
  return log_->whenDurable(logged);
}

}  // namespace psd
