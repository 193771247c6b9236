#include "server/push/push_meter.h"

#include <algorithm>

#include "server/model/slice_checks.h"

namespace psd {

void PushMeter::taken(const PushSlice& slice) {
  const uint64_t bytes = slice.gradient.bytes().size(), valueBytes = slice.gradient.size() * sizeof(float);
  daemon_.pushSlices.add();
  daemon_.pushBytes.add(bytes);
  daemon_.pushValueBytes.add(valueBytes);
  session_.bytesPushed.add(bytes);
  session_.valueBytesPushed.add(valueBytes);
  session_.step.set(slice.head.step.value);
  session_.samples.set(slice.head.samples);
}

void PushMeter::answered(const Result<PushAnswer>& answer) {
  if (!answer.ok()) return countRefusal(daemon_, answer.error());
  daemon_.updates.add(answer->updates);
  if (answer->applied()) session_.staleness.set(answer->staleness);
}

void PushMeter::over(const StepPush& step) {
  PushOutcome worst = PushOutcome::received;
  uint64_t staleness = 0;
  for (const auto& part : step.parts) {
    if (!part || !part->outcome || !part->outcome->ok()) continue;
    worst = std::max(worst, (*part->outcome)->outcome);
    staleness = std::max(staleness, (*part->outcome)->staleness);
  }
  if (worst == PushOutcome::late) daemon_.latePushes.add();
  if (worst == PushOutcome::stale) daemon_.stalePushes.add();
  if (worst != PushOutcome::applied) return;
  daemon_.gradients.add();
  daemon_.staleness.record(static_cast<double>(staleness));
  session_.allStaleness.record(static_cast<double>(staleness));
  daemon_.applySeconds.record(step.sinceFirstSlice.seconds());
}

}  // namespace psd
