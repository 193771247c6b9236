#include "server/store/applied_push.h"

#include <algorithm>

namespace psd {

void recordPush(std::vector<AppliedPush>& pushes, AppliedPush push) {
  auto known = std::find_if(pushes.begin(), pushes.end(),
                            [&](const AppliedPush& other) { return other.rank == push.rank; });
  if (known == pushes.end()) {
    pushes.push_back(push);
    return;
  }
  const bool sameProcess = known->incarnation == push.incarnation && known->step < push.step;
  const uint64_t distance =
      sameProcess ? push.step.value - known->step.value : AppliedPush::kRememberedSteps + 1;
  if (distance < AppliedPush::kRememberedSteps) push.before = known->before << distance;
  if (distance <= AppliedPush::kRememberedSteps) push.before |= uint64_t{1} << (distance - 1);
  recordEarlierIncarnations(push, *known);
  *known = std::move(push);
}

void recordEarlierIncarnations(AppliedPush& newer, const AppliedPush& older) {
  std::vector<uint64_t> lives = older.earlier;
  lives.push_back(older.incarnation);
  lives.insert(lives.end(), newer.earlier.begin(), newer.earlier.end());
  newer.earlier.clear();
  for (const uint64_t life : lives) {
    if (life == 0 || life == newer.incarnation) continue;
    if (std::find(newer.earlier.begin(), newer.earlier.end(), life) == newer.earlier.end()) {
      newer.earlier.push_back(life);
    }
  }
  if (newer.earlier.size() > AppliedPush::kEarlierIncarnationsMax) {
    newer.earlier.erase(newer.earlier.begin(), newer.earlier.end() - AppliedPush::kEarlierIncarnationsMax);
  }
}

bool holds(const AppliedPush& push, Step step) {
  if (step >= push.step) return step == push.step;
  const uint64_t distance = push.step.value - step.value;
  return distance > AppliedPush::kRememberedSteps || (push.before >> (distance - 1) & 1) != 0;
}

}  // namespace psd
