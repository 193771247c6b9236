#include "server/membership/sample_plan.h"

#include <algorithm>
#include <iterator>

namespace psd {

std::optional<SampleRange> SamplePlan::take(SessionId session, Step step, uint64_t count) {
  if (auto before = dealt_.find({session, step}); before != dealt_.end()) return before->second;
  SampleRange range;
  if (auto first = returned_.begin(); first != returned_.end()) {
    range = {first->first.first, first->first.second, std::min(count, first->second)};
    const uint64_t rest = first->second - range.count;
    returned_.erase(first);
    if (rest > 0) put({range.epoch, range.begin + range.count, rest});
  } else if (epoch_ < epochs_) {
    range = {epoch_, next_, std::min(count, samples_ - next_)};
    next_ += range.count;
    if (next_ == samples_) {
      next_ = 0;
      epoch_++;
    }
  } else {
    return std::nullopt;
  }
  dealt_[{session, step}] = range;
  return range;
}

void SamplePlan::put(const SampleRange& range) { returned_[{range.epoch, range.begin}] = range.count; }

void SamplePlan::done(SessionId session, Step step) {
  auto dealt = dealt_.find({session, step});
  if (dealt == dealt_.end()) return;
  done_ += dealt->second.count;
  dealt_.erase(dealt);
}

void SamplePlan::giveBack(SessionId session, Step step) {
  auto dealt = dealt_.find({session, step});
  if (dealt == dealt_.end()) return;
  put(dealt->second);
  dealt_.erase(dealt);
}

size_t SamplePlan::openSteps(SessionId session) const {
  return static_cast<size_t>(std::distance(dealt_.lower_bound({session, Step{0}}),
                                           dealt_.lower_bound({SessionId{session.value + 1}, Step{0}})));
}

std::vector<Step> SamplePlan::leave(SessionId session) {
  std::vector<Step> steps;
  auto dealt = dealt_.lower_bound({session, Step{0}});
  while (dealt != dealt_.end() && dealt->first.first == session) {
    put(dealt->second);
    steps.push_back(dealt->first.second);
    dealt = dealt_.erase(dealt);
  }
  return steps;
}

}  // namespace psd
