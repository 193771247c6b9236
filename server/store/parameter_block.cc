#include "server/store/parameter_block.h"

namespace psd {

kj::Promise<ByteBudget::Lease> ParameterBlock::roomToLog(uint64_t gradientBytes) const {
  if (!log_) return ByteBudget::Lease();
  return log_->room(gradientBytes);
}

Version ParameterBlock::endUpdate(const AppliedUpdate& update, ByteBudget::Lease room) {
  const Version made = endUpdate();
  for (const UpdateSource& source : update.sources) {
    if (source.isShare()) continue;
    pushed_.note({source.rank, source.incarnation, source.step, made, source.staleness});
  }
  if (divided_ && !pushed_.divided()) divided_ = false;
  if (log_) logged_ = log_->append(range_.id, update, std::move(room));
  return made;
}

ParameterBlock::Recorded ParameterBlock::endRacingUpdate(AppliedUpdate update, ByteBudget::Lease room) {
  const std::lock_guard hold(ending_);
  update.scalars.number = version().value + 1;
  const Version made = endUpdate(update, std::move(room));
  return {made, logged_};
}

std::vector<PushedRange> ParameterBlock::lacking(const UpdateSource& push) const {
  const std::lock_guard hold(ending_);
  return pushed_.lacking(push);
}

kj::Promise<void> ParameterBlock::whenDurable(uint64_t logged) const {
  if (!log_ || logged == 0) return kj::READY_NOW;
  return log_->whenDurable(logged);
}

}  // namespace psd
