#include "server/store/parameter_block.h"

#include <algorithm>

namespace psd {

kj::Promise<ByteBudget::Lease> ParameterBlock::reserveLogSpace(uint64_t gradientBytes) const {
  if (!log_) return ByteBudget::Lease();
  return log_->space(gradientBytes);
}

Version ParameterBlock::endUpdate(const AppliedUpdate& update, ByteBudget::Lease space) {
  const Version made = endUpdate();
  notePushed(update.scalars.pushed.get());
  for (const UpdateSource& source : update.sources) {
    if (source.isShare()) continue;
    pushed_.note({source.rank, source.incarnation, source.step, made, source.staleness});
  }
  if (divided_ && !pushed_.divided()) divided_ = false;
  if (log_) logged_ = log_->append(range_.id, update, std::move(space));
  return made;
}

void ParameterBlock::notePushed(const Hyperparameters* pushed) {
  double largest = -1;
  if (pushed) {
    for (const std::vector<double>& set : pushed->sets) largest = std::max(largest, set.front());
  }
  pushedRate_.store(largest, std::memory_order_relaxed);
}

ParameterBlock::Recorded ParameterBlock::endRacingUpdate(AppliedUpdate update, ByteBudget::Lease space) {
  const std::lock_guard hold(recordMutex_);
  update.scalars.number = version().value + 1;
  const Version made = endUpdate(update, std::move(space));
  return {made, logged_};
}

std::vector<PushedRange> ParameterBlock::lacking(const UpdateSource& push) const {
  const std::lock_guard hold(recordMutex_);
  return pushed_.lacking(push);
}

kj::Promise<void> ParameterBlock::whenDurable(uint64_t logged) const {
  if (!log_ || logged == 0) return kj::READY_NOW;
  return log_->whenDurable(logged);
}

}  // namespace psd
