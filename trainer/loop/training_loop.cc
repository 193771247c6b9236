#include "trainer/loop/training_loop.h"

#include <algorithm>
#include <span>
#include <utility>

#include "common/types/stopwatch.h"
#include "trainer/loop/batches.h"
#include "trainer/loop/gradient_weight.h"

namespace psd {

TrainingLoop::TrainingLoop(Client& client, Model& model, const Dataset& train, const LoopOptions& options)
    : client_(client),
      model_(model),
      train_(train),
      options_(options),
      pushes_(model, [this](const PushInfo& answer) { tally_.addAnswer(answer); }) {}

std::span<const float> TrainingLoop::newestParameters() {
  const auto values = model_.onHost(model_.parameters());
  return values.ok() ? *values : std::span<const float>();  // which no daemon takes for a model
}

Result<JoinInfo> TrainingLoop::join() {
  PSD_ASSIGN_OR_RETURN(JoinInfo info,
                       client_.join(options_.membership, options_.presentedAs.value_or(model_.spec()),
                                    [this] { return newestParameters(); }));
  if (info.pullTransport == "cuda") {
    PSD_RETURN_IF_ERROR(model_.keepArraysOnDevice());
    client_.useDeviceMemory();
  }
  if (info.local.period != 0) {
    if (options_.inflight > 0 || options_.prefetch) {
      return Error{ErrorCode::invalidArgument, "--inflight and --prefetch do not go with policy " +
                                                   info.policy +
                                                   ", under which trainers take steps by themselves"};
    }
    if (options_.dealtSamples) {
      return Error{ErrorCode::invalidArgument, "--data-plan dynamic does not go with policy " + info.policy +
                                                   ", under which not every step is pushed"};
    }
    own_.emplace(client_, model_, info.local);
  }
  if (options_.membership.anyRank) {
    options_.membership = {info.rank, info.worldSize};
    model_.becomeRank(info.rank);
  }
  const Membership& membership = options_.membership;
  if (train_.sampleCount() < membership.worldSize) {
    return Error{ErrorCode::invalidArgument, std::to_string(membership.worldSize) + " trainers for " +
                                                 train_.describe() + "; expected at least one sample each"};
  }
  const auto samples = static_cast<uint32_t>(train_.sampleCount());
  sharder_ = options_.dealtSamples ? Sharder(options_.seed, samples, Rank{0}, 1)
                                   : Sharder(options_.seed, samples, membership.rank, membership.worldSize);
  return info;
}

Result<TrainingSummary> TrainingLoop::run(const std::vector<LoopObserver*>& observers,
                                          const std::function<bool()>& shouldStop) {
  const Stopwatch stopwatch;
  PSD_RETURN_IF_ERROR(model_.reserve(options_.inflight + 1, options_.prefetch || own_));
  Result<bool> interrupted = runSteps(observers, shouldStop);
  const auto told = [](const Error& error) { return error.code == ErrorCode::interrupted; };
  if (!interrupted.ok() && told(interrupted.error())) interrupted = true;
  // What is still under way reads and writes the model's arrays; after an error, it changes nothing.
  if (prefetched_) (void)prefetched_->wait();
  prefetched_.reset();
  const Status answered = interrupted.ok() ? pushes_.reduceTo(0) : Status();
  pushes_.abandon();
  PSD_RETURN_IF_ERROR(interrupted);
  const bool unanswered = !answered.ok() && told(answered.error());
  if (!answered.ok() && !unanswered) return answered.error();
  return tally_.finish(stopwatch.seconds(), *interrupted || unanswered);
}

Result<bool> TrainingLoop::runSteps(const std::vector<LoopObserver*>& observers,
                                    const std::function<bool()>& shouldStop) {
  for (uint64_t step = 1;; ++step) {
    if (shouldStop()) return true;
    StepReport report;
    report.step = step;
    PSD_ASSIGN_OR_RETURN(const bool more, takeStep(report));
    if (!more) return false;
    if (own_) {
      PSD_RETURN_IF_ERROR(takeOwnStep(*own_, report));
    } else {
      PSD_RETURN_IF_ERROR(takeParameters(report));
      PSD_RETURN_IF_ERROR(computeAndPush(report));
    }
    pace_.add(report.samples, report.computeSeconds);
    tally_.addStep(report);
    for (LoopObserver* observer : observers) observer->onStep(report);
  }
}

uint64_t TrainingLoop::stepsPerEpoch() const {
  return (uint64_t{sharder_->partSize()} + options_.batchSize - 1) / options_.batchSize;
}

uint64_t TrainingLoop::totalSteps() const {
  if (options_.dealtSamples) {
    const uint64_t batches = options_.epochs * stepsPerEpoch(), trainers = options_.membership.worldSize;
    return (batches + trainers - 1) / trainers;
  }
  return options_.steps != 0 ? options_.steps : options_.epochs * stepsPerEpoch();
}

void TrainingLoop::fillBatch(const StepReport& report) {
  const uint64_t epoch = report.epoch - 1;
  if (part_.empty() || epoch != partEpoch_) part_ = sharder_->part(epoch);
  partEpoch_ = epoch;
  uint64_t begin = dealt_.begin, count = dealt_.count;
  if (!options_.dealtSamples) {
    begin = (report.step - 1) % stepsPerEpoch() * options_.batchSize;
    count = std::min<uint64_t>(options_.batchSize, part_.size() - begin);
  }
  train_.fill(std::span(part_).subspan(begin, count), batch_);
}

Result<bool> TrainingLoop::takeStep(StepReport& report) {
  if (options_.dealtSamples) {
    auto dealt = takeSamples(report.step);
    if (!dealt.ok()) return atStep(report.step, dealt_.epoch + 1, dealt.error());
    if (dealt->what == DealtSamples::What::finished) return false;
    dealt_ = *dealt;
  } else if (report.step > totalSteps()) {
    return false;
  }
  describe(report);
  return true;
}

Result<DealtSamples> TrainingLoop::takeSamples(uint64_t step) {
  SamplesRequest request{.step = Step{step},
                         .count = options_.batchSize,
                         .samples = train_.sampleCount(),
                         .epochs = options_.epochs,
                         .firstEpoch = dealt_.epoch};
  if (options_.autoBatch) {
    request.count *= kAutoBatchMost;
    request.nominal = options_.batchSize;
    request.sampleSeconds = pace_.sampleSeconds();
  }
  PSD_ASSIGN_OR_RETURN(DealtSamples dealt, client_.takeSamples(request));
  if (dealt.what == DealtSamples::What::nothingNow) {
    PSD_RETURN_IF_ERROR(pushes_.reduceTo(0));
    request.wait = true;
    PSD_ASSIGN_OR_RETURN(dealt, client_.takeSamples(request));
  }
  const uint64_t samples = train_.sampleCount();
  if (dealt.what == DealtSamples::What::range &&
      (dealt.epoch >= options_.epochs || dealt.count == 0 || dealt.count > request.count ||
       dealt.count > samples || dealt.begin > samples - dealt.count)) {
    return Error{ErrorCode::protocolMismatch, "the daemon dealt samples that were not asked for"};
  }
  return dealt;
}

void TrainingLoop::describe(StepReport& report) const {
  report.autoBatch = options_.autoBatch;
  if (options_.dealtSamples) {
    report.totalSteps = std::max(report.step, totalSteps());
    report.epoch = dealt_.epoch + 1;
    report.totalEpochs = options_.epochs;
    report.endsEpoch = dealt_.begin + dealt_.count == train_.sampleCount();
    return;
  }
  report.totalSteps = totalSteps();
  report.epoch = (report.step - 1) / stepsPerEpoch() + 1;
  report.totalEpochs = (totalSteps() - 1) / stepsPerEpoch() + 1;
  report.endsEpoch = report.step % stepsPerEpoch() == 0 || report.step == totalSteps();
}

Status TrainingLoop::takeParameters(StepReport& report) {
  Stopwatch stopwatch;
  const bool spare = prefetched_.has_value();
  Pending<PullInfo> pull = spare ? std::move(*prefetched_) : client_.pull(model_.parameters());
  prefetched_.reset();
  fillBatch(report);  // while the parameters arrive
  report.samples = static_cast<uint32_t>(batch_.size());
  report.computeSeconds = stopwatch.lap();
  const Result<PullInfo> pulled = pull.wait();
  if (!pulled.ok()) return atStep(report.step, report.epoch, pulled.error());
  report.pullSeconds = stopwatch.lap();
  basis_ = pulled->versions;
  if (spare) model_.swapParameters();
  if (options_.prefetch && (options_.dealtSamples || report.step < report.totalSteps)) {
    prefetched_ = client_.pull(model_.spareParameters());
  }
  return {};
}

Status TrainingLoop::computeAndPush(StepReport& report) {
  Stopwatch stopwatch;
  const Result<double> loss = beginPush(report);
  if (!loss.ok()) return atStep(report.step, report.epoch, loss.error());
  report.loss = *loss;
  report.computeSeconds += stopwatch.lap();
  PSD_RETURN_IF_ERROR(pushes_.reduceTo(options_.inflight));
  report.pushSeconds = stopwatch.lap();
  tally_.describe(report);
  report.gradientBytes = model_.gradients().size_bytes();
  report.inflight = pushes_.count();
  return {};
}

Status TrainingLoop::takeOwnStep(OwnSteps& own, StepReport& report) {
  Stopwatch stopwatch;
  const auto here = [&](const Error& error) { return atStep(report.step, report.epoch, error); };
  if (Status begun = own.begin(); !begun.ok()) return here(begun.error());
  report.pullSeconds = stopwatch.lap();
  fillBatch(report);
  report.samples = static_cast<uint32_t>(batch_.size());
  const Result<double> loss = model_.computeGradients(viewOf(batch_));
  if (!loss.ok()) return here(loss.error());
  own.step(report.samples);
  report.loss = *loss;
  report.computeSeconds = stopwatch.lap();
  if (own.due(report.step == report.totalSteps)) {
    Result<Pending<PushInfo>> answer = own.exchange(++exchanges_);
    if (!answer.ok()) return here(answer.error());
    pushes_.add({report.step, report.epoch, *loss, model_.spareParameters(), *std::move(answer)});
    PSD_RETURN_IF_ERROR(pushes_.reduceTo(0));
    report.pushSeconds = stopwatch.lap();
  }
  tally_.describe(report);
  report.gradientBytes = model_.gradients().size_bytes();
  return {};
}

Result<double> TrainingLoop::beginPush(const StepReport& report) {
  model_.rotateGradients();  // the oldest array: its push is answered
  const std::span<const float> gradient = model_.gradients();
  const auto sent = [&](double loss, Pending<PushInfo> answer) {
    pushes_.add({report.step, report.epoch, loss, gradient, std::move(answer)});
    return loss;
  };
  if (options_.inflight == 0) {
    PSD_ASSIGN_OR_RETURN(const double loss, model_.computeGradients(viewOf(batch_)));
    weigh(0, gradient.size());
    return sent(loss, client_.push(Step{report.step}, gradient, report.samples, basis_));
  }
  const auto push = client_.beginPush(Step{report.step}, gradient, report.samples, basis_);
  PSD_ASSIGN_OR_RETURN(const double loss,
                       model_.computeGradients(viewOf(batch_), [&](uint64_t begin, uint64_t count) {
                         weigh(begin, count);
                         push->ready(begin, count);
                       }));
  return sent(loss, push->finish());
}

void TrainingLoop::weigh(uint64_t begin, uint64_t count) {
  if (dealt_.unweighted.empty() || dealt_.count == options_.batchSize) return;
  scaleGradient(model_.gradients(), {begin, count}, dealt_.unweighted,
                static_cast<float>(dealt_.count) / static_cast<float>(options_.batchSize));
}

}  // namespace psd
