#include "trainer/loop/pushes_in_flight.h"

#include <string>
#include <utility>

#include "trainer/loop/non_finite.h"
#include "trainer/loop/rows_of_batch.h"

namespace psd {

Status PushesInFlight::reduceTo(uint64_t most) {
  while (!pushes_.empty() && (pushes_.size() > most || pushes_.front().answer.done())) {
    PushInFlight push = std::move(pushes_.front());
    pushes_.pop_front();
    const Result<PushInfo> answer = push.answer.wait();
    if (!answer.ok()) return atStep(push.step, push.epoch, explain(push, answer.error()));
    whenAnswered_(*answer);
  }
  return {};
}

void PushesInFlight::abandon() {
  for (PushInFlight& push : pushes_) (void)push.answer.wait();
  pushes_.clear();
}

Error PushesInFlight::explain(const PushInFlight& push, const Error& refusal) const {
  if (refusal.code != ErrorCode::nonFinite) return refusal;
  const auto gradient = model_.onHost(push.gradient);
  if (!gradient.ok()) return refusal;
  std::string where = describeNonFinite(model_.spec(), *gradient);
  if (where.empty() && push.rows) where = describeNonFiniteRows(model_.spec(), *push.rows);
  if (where.empty()) return refusal;
  return {ErrorCode::nonFinite, "the gradient of " + where + " (loss " + std::to_string(push.loss) +
                                    "), so the daemon refused it; a lower learning rate may help"};
}

Error atStep(uint64_t step, uint64_t epoch, const Error& error) {
  return {error.code,
          "step " + std::to_string(step) + " (epoch " + std::to_string(epoch) + "): " + error.message};
}

}  // namespace psd
