#include "server/replica/plan_talk.h"

#include <algorithm>

namespace psd {

void PlanTalk::swap(const PlanView& wanted, GroupActions& out) {
  swapping_ = true;
  expected_ = known_.revision;
  out.push_back(group_action::Swap{known_.revision, wanted});
}

void PlanTalk::read(GroupActions& out) {
  if (reading_) return;
  reading_ = true;
  readDue_.reset();
  out.push_back(group_action::Read{});
}

void PlanTalk::readLater(TimePoint now) {
  if (reading_ || readDue_) return;
  readDue_ = now + pause_;
  pause_ = std::min(2 * pause_, rules_.alone);
}

void PlanTalk::tick(TimePoint now, GroupActions& out) {
  if (readDue_ && now >= *readDue_) read(out);
}

void PlanTalk::swapUnknown(GroupActions& out) {
  if (!swapping_) return;
  swapping_ = false;
  uncertain_ = true;
  lost_ = expected_;
  read(out);
}

void PlanTalk::readUnknown(TimePoint now) {
  reading_ = false;
  readLater(now);
}

bool PlanTalk::learn(const PlanView& view, TimePoint now) {
  uncertain_ = false;
  if (view.revision < known_.revision) return false;
  if (view.revision > known_.revision) pause_ = rules_.beat;
  known_ = view;
  if (open(lost_)) readLater(now);
  return true;
}

}  // namespace psd
