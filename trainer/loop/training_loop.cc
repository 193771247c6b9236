#include "trainer/loop/training_loop.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <string>

#include "trainer/loop/batches.h"
#include "trainer/loop/non_finite.h"

namespace psd {
namespace {

/// Seconds between two points of a run.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  /// Seconds since the start or the last lap.
  double lap() {
    const double elapsed = seconds();
    start_ = std::chrono::steady_clock::now();
    return elapsed;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Adds up reports to a TrainingSummary.
class Tally {
 public:
  void add(const StepReport& report) {
    if (report.epoch != epoch_) epochLossSum_ = epochSamples_ = 0;
    epoch_ = report.epoch;
    epochLossSum_ += report.loss * report.samples;
    epochSamples_ += report.samples;
    stalenessSum_ += static_cast<double>(report.staleness);
    summary_.stalenessMax = std::max(summary_.stalenessMax, report.staleness);
    summary_.samples += report.samples;
    ++summary_.steps;
  }

  TrainingSummary finish(double seconds, bool interrupted) {
    summary_.seconds = seconds;
    summary_.interrupted = interrupted;
    if (summary_.steps > 0) {
      summary_.loss = epochLossSum_ / epochSamples_;
      summary_.stalenessMean = stalenessSum_ / static_cast<double>(summary_.steps);
    }
    return summary_;
  }

 private:
  TrainingSummary summary_;
  uint64_t epoch_ = 0;
  double epochLossSum_ = 0;
  double epochSamples_ = 0;
  double stalenessSum_ = 0;
};

}  // namespace

TrainingLoop::TrainingLoop(Client& client, Model& model, const Dataset& train, const LoopOptions& options)
    : client_(client),
      model_(model),
      train_(train),
      options_(options),
      sharder_(options.seed, static_cast<uint32_t>(train.sampleCount()), options.membership.rank,
               options.membership.worldSize) {}

Result<JoinInfo> TrainingLoop::join() {
  return client_.join(options_.membership, model_.spec(),
                      [this] { return std::span<const float>(model_.parameters()); });
}

Result<TrainingSummary> TrainingLoop::run(const std::vector<LoopObserver*>& observers,
                                          const std::function<bool()>& shouldStop) {
  const Stopwatch stopwatch;
  Tally tally;
  for (uint64_t step = 1; step <= totalSteps(); ++step) {
    if (shouldStop()) return tally.finish(stopwatch.seconds(), true);
    PSD_ASSIGN_OR_RETURN(const StepReport report, runStep(step));
    tally.add(report);
    for (LoopObserver* observer : observers) observer->onStep(report);
  }
  return tally.finish(stopwatch.seconds(), false);
}

uint64_t TrainingLoop::stepsPerEpoch() const {
  return (uint64_t{sharder_.partSize()} + options_.batchSize - 1) / options_.batchSize;
}

uint64_t TrainingLoop::totalSteps() const {
  return options_.steps != 0 ? options_.steps : options_.epochs * stepsPerEpoch();
}

void TrainingLoop::fillBatch(uint64_t step) {
  const uint64_t place = (step - 1) % stepsPerEpoch();
  if (place == 0) part_ = sharder_.part((step - 1) / stepsPerEpoch());
  const uint64_t begin = place * options_.batchSize;
  const uint64_t count = std::min<uint64_t>(options_.batchSize, part_.size() - begin);
  train_.fill(std::span(part_).subspan(begin, count), batch_);
}

Result<StepReport> TrainingLoop::runStep(uint64_t step) {
  StepReport report;
  report.step = step;
  report.totalSteps = totalSteps();
  report.epoch = (step - 1) / stepsPerEpoch() + 1;
  report.totalEpochs = (totalSteps() - 1) / stepsPerEpoch() + 1;
  report.endsEpoch = step % stepsPerEpoch() == 0 || step == totalSteps();
  const Status done = pullComputePush(report);
  if (!done.ok()) {
    return Error{done.error().code, "step " + std::to_string(step) + " (epoch " +
                                        std::to_string(report.epoch) + "): " + done.message()};
  }
  return report;
}

Status TrainingLoop::pullComputePush(StepReport& report) {
  Stopwatch stopwatch;
  Pending<PullInfo> pull = client_.pull(model_.parameters());
  fillBatch(report.step);  // while the parameters arrive
  PSD_RETURN_IF_ERROR(pull.wait());
  report.pullSeconds = stopwatch.lap();

  PSD_ASSIGN_OR_RETURN(report.loss, model_.computeGradients(viewOf(batch_)));
  report.samples = static_cast<uint32_t>(batch_.size());
  report.computeSeconds = stopwatch.lap();

  Pending<PushInfo> push = client_.push(Step{report.step}, model_.gradients(), report.samples);
  const Result<PushInfo> pushed = push.wait();
  if (!pushed.ok()) {
    return pushed.error().code == ErrorCode::nonFinite ? explainNonFinite(pushed.error(), report.loss)
                                                       : pushed.error();
  }
  report.staleness = pushed->staleness;
  report.pushSeconds = stopwatch.lap();
  return {};
}

Error TrainingLoop::explainNonFinite(const Error& refusal, double loss) const {
  const std::string where = describeNonFinite(model_.spec(), model_.gradients());
  if (where.empty()) return refusal;
  return {ErrorCode::nonFinite, "the gradient of " + where + " (loss " + std::to_string(loss) +
                                    "), so the server refused it; a lower learning rate may help"};
}

}  // namespace psd
