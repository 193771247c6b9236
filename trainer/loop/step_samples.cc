#include "trainer/loop/step_samples.h"

#include <algorithm>
#include <span>

#include "trainer/loop/pushes_in_flight.h"

namespace psd {

void StepSamples::begin(const Membership& membership) {
  worldSize_ = membership.worldSize;
  if (options_.assignedSamples) {
    part_.emplace(options_.seed, data_, Rank{0}, 1);
  } else {
    part_.emplace(options_.seed, data_, membership.rank, membership.worldSize);
  }
}

uint64_t StepSamples::stepsPerEpoch() const {
  return (uint64_t{part_->partSize()} + options_.batchSize - 1) / options_.batchSize;
}

uint64_t StepSamples::totalSteps() const {
  if (options_.assignedSamples) {
    const uint64_t batches = options_.epochs * stepsPerEpoch();
    return (batches + worldSize_ - 1) / worldSize_;
  }
  return options_.steps != 0 ? options_.steps : options_.epochs * stepsPerEpoch();
}

Result<StepSamples::Next> StepSamples::take(StepReport& report, bool wait) {
  report.autoBatch = options_.autoBatch;
  if (options_.assignedSamples) {
    auto assignment = requestSamples(report.step, wait);
    if (!assignment.ok()) return atStep(report.step, assignment_.epoch + 1, assignment.error());
    if (assignment->what == AssignedSamples::What::finished) return Next::finished;
    if (assignment->what == AssignedSamples::What::nothingNow) return Next::nothingNow;
    assignment_ = *std::move(assignment);
    epoch_ = assignment_.epoch;
    begin_ = assignment_.begin;
    count_ = assignment_.count;
    describeAssigned(report);
    return Next::samples;
  }
  if (report.step > totalSteps()) return Next::finished;
  epoch_ = (report.step - 1) / stepsPerEpoch();
  begin_ = (report.step - 1) % stepsPerEpoch() * options_.batchSize;
  count_ = std::min<uint64_t>(options_.batchSize, part_->partSize() - begin_);
  describePart(report);
  return Next::samples;
}

Result<AssignedSamples> StepSamples::requestSamples(uint64_t step, bool wait) {
  SamplesRequest request{.step = Step{step},
                         .count = options_.batchSize,
                         .samples = data_.sampleCount(),
                         .epochs = options_.epochs,
                         .firstEpoch = assignment_.epoch};
  request.wait = wait;
  if (options_.autoBatch) {
    request.count *= kAutoBatchFactorMax;
    request.nominal = options_.batchSize;
    request.sampleSeconds = pace_.sampleSeconds();
  }
  PSD_ASSIGN_OR_RETURN(AssignedSamples assignment, client_.takeSamples(request));
  const uint64_t samples = data_.sampleCount();
  if (assignment.what == AssignedSamples::What::range &&
      (assignment.epoch >= options_.epochs || assignment.count == 0 || assignment.count > request.count ||
       assignment.count > samples || assignment.begin > samples - assignment.count)) {
    return Error{ErrorCode::protocolMismatch, "the daemon assigned samples that were not requested"};
  }
  return assignment;
}

void StepSamples::describeAssigned(StepReport& report) const {
  report.totalSteps = std::max(report.step, totalSteps());
  report.epoch = epoch_ + 1;
  report.totalEpochs = options_.epochs;
  report.endsEpoch = begin_ + count_ == data_.sampleCount();
}

void StepSamples::describePart(StepReport& report) const {
  report.totalSteps = totalSteps();
  report.epoch = epoch_ + 1;
  report.totalEpochs = (totalSteps() - 1) / stepsPerEpoch() + 1;
  report.endsEpoch = report.step % stepsPerEpoch() == 0 || report.step == totalSteps();
}

Status StepSamples::fill(Batch& batch) { return data_.fill(part_->take(epoch_, begin_, count_), batch); }

}  // namespace psd
