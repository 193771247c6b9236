#include "trainer/client/report_queue.h"

#include <algorithm>
#include <utility>

namespace psd {

void ReportQueue::add(Step step, std::span<const NamedValue> values) {
  Report next{step, {values.begin(), values.end()}};
  if (waiting_) {
    for (NamedValue& older : waiting_->values) {
      if (next.values.size() >= kReportedValuesMax) break;
      if (std::ranges::find(values, older.name, &NamedValue::name) == values.end()) {
        next.values.push_back(std::move(older));
      }
    }
  }
  waiting_ = std::move(next);
  if (underWay_) return;
  underWay_ = true;
  running_ = sendQueued().eagerlyEvaluate([](kj::Exception&&) {});
}

kj::Promise<void> ReportQueue::sendQueued() {
  if (!waiting_) {
    underWay_ = false;
    return kj::READY_NOW;
  }
  const Report next = std::move(*waiting_);
  waiting_.reset();
  return send_(next.step, next.values).then([this] { return sendQueued(); });
}

}  // namespace psd
