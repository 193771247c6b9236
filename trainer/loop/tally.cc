#include "trainer/loop/tally.h"

#include <algorithm>

namespace psd {

void Tally::addStep(const StepReport& report) {
  if (report.epoch != epoch_) epochLossSum_ = epochSamples_ = 0;
  epoch_ = report.epoch;
  epochLossSum_ += report.loss * report.samples;
  epochSamples_ += report.samples;
  summary_.samples += report.samples;
  ++summary_.steps;
}

void Tally::addAnswer(const PushInfo& answer) {
  ++answers_;
  staleness_ = answer.staleness;
  pushBytes_ = answer.bytes;
  stalenessSum_ += static_cast<double>(answer.staleness);
  summary_.stalenessMax = std::max(summary_.stalenessMax, answer.staleness);
  summary_.late += answer.outcome == PushOutcome::late;
  summary_.stale += answer.outcome == PushOutcome::stale;
}

void Tally::describe(StepReport& report) const {
  report.staleness = staleness_;
  report.pushBytes = pushBytes_;
  report.late = summary_.late;
  report.stale = summary_.stale;
}

TrainingSummary Tally::finish(double seconds, bool interrupted) {
  summary_.seconds = seconds;
  summary_.interrupted = interrupted;
  if (summary_.steps > 0) summary_.loss = epochLossSum_ / epochSamples_;
  if (answers_ > 0) summary_.stalenessMean = stalenessSum_ / static_cast<double>(answers_);
  return summary_;
}

}  // namespace psd
