// The side of PushServer that keeps account: counts what came and what became of it, and tells the control
// loop of the samples behind it.

#include <algorithm>

#include "server/push/push_server.h"

namespace psd {

void PushServer::count(const PushSlice& slice) {
  DaemonCounters& counters = home_->environment().counters;
  counters.pushSlices.add();
  const uint64_t bytes = slice.gradient.bytes().size(), valueBytes = slice.gradient.size() * sizeof(float);
  counters.pushBytes.add(bytes);
  counters.pushValueBytes.add(valueBytes);
  counters_->bytesPushed.add(bytes);
  counters_->valueBytesPushed.add(valueBytes);
  counters_->step.set(slice.step.value);
  counters_->samples.set(slice.samples);
}

void PushServer::count(const PushAnswer& answer) {
  DaemonCounters& counters = home_->environment().counters;
  counters.updates.add(answer.updates);
  if (answer.outcome == PushOutcome::applied) counters_->staleness.set(answer.staleness);
}

void PushServer::countOver(const StepPush& step) {
  PushOutcome worst = PushOutcome::received;
  uint64_t staleness = 0;
  for (const auto& part : step.parts) {
    if (part && part->fate && part->fate->ok()) worst = std::max(worst, (*part->fate)->outcome);
    if (part && part->fate && part->fate->ok()) staleness = std::max(staleness, (*part->fate)->staleness);
  }
  DaemonCounters& counters = home_->environment().counters;
  if (worst == PushOutcome::applied) counters.gradients.add();
  if (worst == PushOutcome::applied) counters.staleness.record(static_cast<double>(staleness));
  if (worst == PushOutcome::applied) counters.applySeconds.record(step.sinceFirstSlice.seconds());
  if (worst == PushOutcome::late) counters.latePushes.add();
  if (worst == PushOutcome::stale) counters.stalePushes.add();
}

void PushServer::tellOfSamples(const StepPush& step) {
  if (!home_->environment().dealsSamples) return;
  bool applied = step.outcome->ok() && (*step.outcome)->applied();
  for (size_t shard = 0; shard < step.parts.size(); shard++) {
    const auto& part = step.parts[shard];
    if (!part) {  // an earlier session brought it in
      const PushAnswer* before = ofShards_[shard].find(step.number);
      applied = applied || (before && before->applied());
      continue;
    }
    applied = applied || (part->fate && !part->dropped());
  }
  tellOfSamples(step.number, applied);
}

void PushServer::tellOfSamplesAgain(Step step) {
  if (!home_->environment().dealsSamples || steps_.contains(step)) return;
  bool applied = false;
  for (const auto& answers : ofShards_) {
    const PushAnswer* answer = answers.find(step);
    if (!answer && !dropped_.find(step)) return;
    applied = applied || (answer && answer->applied());
  }
  tellOfSamples(step, applied);
}

void PushServer::tellOfSamples(Step step, bool applied) {
  home_->detach(home_->onControl([&environment = home_->environment(), life = life_, step,
                                  applied](Control&) { environment.stepOver(life, step, applied); }));
}

}  // namespace psd
