#include "trainer/loop/step_samples.h"

#include <algorithm>
#include <span>

#include "trainer/loop/pushes_in_flight.h"

namespace psd {

void StepSamples::begin(const Membership& membership) {
  worldSize_ = membership.worldSize;
  const auto samples = static_cast<uint32_t>(data_.sampleCount());
  sharder_ = options_.dealtSamples ? Sharder(options_.seed, samples, Rank{0}, 1)
                                   : Sharder(options_.seed, samples, membership.rank, membership.worldSize);
}

uint64_t StepSamples::stepsPerEpoch() const {
  return (uint64_t{sharder_->partSize()} + options_.batchSize - 1) / options_.batchSize;
}

uint64_t StepSamples::totalSteps() const {
  if (options_.dealtSamples) {
    const uint64_t batches = options_.epochs * stepsPerEpoch();
    return (batches + worldSize_ - 1) / worldSize_;
  }
  return options_.steps != 0 ? options_.steps : options_.epochs * stepsPerEpoch();
}

Result<StepSamples::Next> StepSamples::take(StepReport& report, bool wait) {
  report.autoBatch = options_.autoBatch;
  if (options_.dealtSamples) {
    auto dealt = ask(report.step, wait);
    if (!dealt.ok()) return atStep(report.step, dealt_.epoch + 1, dealt.error());
    if (dealt->what == DealtSamples::What::finished) return Next::finished;
    if (dealt->what == DealtSamples::What::nothingNow) return Next::nothingNow;
    dealt_ = *std::move(dealt);
    epoch_ = dealt_.epoch;
    begin_ = dealt_.begin;
    count_ = dealt_.count;
    describeDealt(report);
    return Next::samples;
  }
  if (report.step > totalSteps()) return Next::finished;
  epoch_ = (report.step - 1) / stepsPerEpoch();
  begin_ = (report.step - 1) % stepsPerEpoch() * options_.batchSize;
  count_ = std::min<uint64_t>(options_.batchSize, sharder_->partSize() - begin_);
  describeShare(report);
  return Next::samples;
}

Result<DealtSamples> StepSamples::ask(uint64_t step, bool wait) {
  SamplesRequest request{.step = Step{step},
                         .count = options_.batchSize,
                         .samples = data_.sampleCount(),
                         .epochs = options_.epochs,
                         .firstEpoch = dealt_.epoch};
  request.wait = wait;
  if (options_.autoBatch) {
    request.count *= kAutoBatchMost;
    request.nominal = options_.batchSize;
    request.sampleSeconds = pace_.sampleSeconds();
  }
  PSD_ASSIGN_OR_RETURN(DealtSamples dealt, client_.takeSamples(request));
  const uint64_t samples = data_.sampleCount();
  if (dealt.what == DealtSamples::What::range &&
      (dealt.epoch >= options_.epochs || dealt.count == 0 || dealt.count > request.count ||
       dealt.count > samples || dealt.begin > samples - dealt.count)) {
    return Error{ErrorCode::protocolMismatch, "the daemon assigned samples that were not requested"};
  }
  return dealt;
}

void StepSamples::describeDealt(StepReport& report) const {
  report.totalSteps = std::max(report.step, totalSteps());
  report.epoch = epoch_ + 1;
  report.totalEpochs = options_.epochs;
  report.endsEpoch = begin_ + count_ == data_.sampleCount();
}

void StepSamples::describeShare(StepReport& report) const {
  report.totalSteps = totalSteps();
  report.epoch = epoch_ + 1;
  report.totalEpochs = (totalSteps() - 1) / stepsPerEpoch() + 1;
  report.endsEpoch = report.step % stepsPerEpoch() == 0 || report.step == totalSteps();
}

void StepSamples::fill(Batch& batch) {
  if (partEpoch_ != epoch_) part_ = sharder_->part(epoch_);
  partEpoch_ = epoch_;
  data_.fill(std::span(part_).subspan(begin_, count_), batch);
}

}  // namespace psd
