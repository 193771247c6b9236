#include "trainer/loop/training_loop.h"

#include <algorithm>
#include <span>
#include <utility>

#include "common/types/stopwatch.h"
#include "trainer/loop/gradient_weight.h"

namespace psd {
namespace {

Error combinationError(const std::string& what, const std::string& policy, const std::string& why) {
  return {ErrorCode::invalidArgument,
          what + " cannot be combined with policy " + policy + ", under which " + why};
}

}  // namespace

TrainingLoop::TrainingLoop(Client& client, Model& model, const Dataset& train, const LoopOptions& options)
    : client_(client),
      model_(model),
      train_(train),
      options_(options),
      samples_(client, train, options_),
      pushes_(model, [this](const PushInfo& answer) { tally_.addAnswer(answer); }) {}

std::span<const float> TrainingLoop::newestParameters() {
  const auto values = model_.onHost(model_.parameters());
  return values.ok() ? *values : std::span<const float>();  // empty: the daemon rejects it as initial values
}

Result<JoinInfo> TrainingLoop::join() {
  PSD_ASSIGN_OR_RETURN(JoinInfo info,
                       client_.join(options_.membership, options_.presentedAs.value_or(model_.spec()),
                                    [this] { return newestParameters(); }));
  if (info.allReduce.timeout.count() > 0) {
    PSD_RETURN_IF_ERROR(checkAveraging(info));
    steps_.emplace<AveragedSteps>(client_, model_, *options_.averaging, info.allReduce);
  } else if (info.pullTransport == "cuda") {
    PSD_RETURN_IF_ERROR(model_.moveArraysToDevice());
    client_.useDeviceMemory();
  }
  if (info.local.period != 0) {
    PSD_RETURN_IF_ERROR(checkLocalSteps(info));
    steps_.emplace<LocalStepRunner>(
        client_, model_, info.local, info.shards,
        FragmentExchange::Observer{[this](const PushInfo& answer) { tally_.addAnswer(answer); },
                                   [this] { tally_.addDropped(); }});
  }
  if (options_.membership.anyRank) {
    options_.membership = {info.rank, info.worldSize};
    model_.assignRank(info.rank);
  }
  const Membership& membership = options_.membership;
  if (train_.sampleCount() < membership.worldSize) {
    return Error{ErrorCode::invalidArgument, std::to_string(membership.worldSize) + " trainers for " +
                                                 train_.describe() + "; expected at least one sample each"};
  }
  samples_.begin(membership);
  return info;
}

Status TrainingLoop::checkLocalSteps(const JoinInfo& info) const {
  const auto refused = [&info](const std::string& what, const std::string& why) {
    return combinationError(what, info.policy, why);
  };
  if (options_.inflight > 0 || options_.prefetch) {
    return refused("--inflight and --prefetch", "trainers take local steps");
  }
  if (options_.assignedSamples) return refused("--data-plan dynamic", "not every step is pushed");
  if (!model_.spec().tables.empty()) {
    return refused("the embedding tables of model " + model_.spec().name, "trainers take local steps");
  }
  return {};
}

Status TrainingLoop::checkAveraging(const JoinInfo& info) const {
  const auto refused = [&info](const std::string& what, const std::string& why) {
    return combinationError(what, info.policy, why);
  };
  if (options_.averaging == nullptr) return refused("this trainer", "trainers average gradients");
  if (options_.inflight > 0 || options_.prefetch) {
    return refused("--inflight and --prefetch", "each step depends on the result of the previous one");
  }
  if (options_.assignedSamples) return refused("--data-plan dynamic", "not every trainer pushes its steps");
  return {};
}

Result<TrainingSummary> TrainingLoop::run(const std::vector<LoopObserver*>& observers,
                                          const std::function<bool()>& shouldStop) {
  const Stopwatch stopwatch;
  auto* const local = std::get_if<LocalStepRunner>(&steps_);
  PSD_RETURN_IF_ERROR(model_.reserve(options_.inflight + 1, options_.prefetch || local));
  Result<bool> interrupted = runSteps(observers, shouldStop);
  const auto isInterrupt = [](const Error& error) { return error.code == ErrorCode::interrupted; };
  if (!interrupted.ok() && isInterrupt(interrupted.error())) interrupted = true;
  // Calls in flight access the model's arrays, so wait for them; after an error their results are ignored.
  for (Input* const each : {&input_, &next_}) {
    if (each->pull) (void)each->pull->wait();
    each->pull.reset();
  }
  Status answered = interrupted.ok() ? pushes_.reduceTo(0) : Status();
  pushes_.abandon();
  if (const Status settled = local ? local->settle() : Status(); answered.ok()) answered = settled;
  PSD_RETURN_IF_ERROR(interrupted);
  const bool unanswered = !answered.ok() && isInterrupt(answered.error());
  if (!answered.ok() && !unanswered) return answered.error();
  return tally_.finish(stopwatch.seconds(), *interrupted || unanswered);
}

Result<bool> TrainingLoop::runSteps(const std::vector<LoopObserver*>& observers,
                                    const std::function<bool()>& shouldStop) {
  for (uint64_t step = 1;; ++step) {
    if (shouldStop()) return true;
    PSD_ASSIGN_OR_RETURN(const bool more, takeStep(step));
    if (!more) return false;
    PSD_RETURN_IF_ERROR(std::visit([this](auto& how) { return take(how); }, steps_));
    const StepReport& report = input_.report;
    samples_.addComputeTime(report.samples, report.computeSeconds);
    tally_.addStep(report);
    for (LoopObserver* observer : observers) observer->onStep(report);
  }
}

Result<bool> TrainingLoop::takeStep(uint64_t step) {
  if (next_.pull) {
    std::swap(input_, next_);
    return true;
  }
  input_.report = {.step = step};
  PSD_ASSIGN_OR_RETURN(StepSamples::Next next, samples_.take(input_.report, /*wait=*/false));
  if (next == StepSamples::Next::nothingNow) {
    PSD_RETURN_IF_ERROR(pushes_.reduceTo(0));
    PSD_ASSIGN_OR_RETURN(next, samples_.take(input_.report, /*wait=*/true));
  }
  return next == StepSamples::Next::samples;
}

Status TrainingLoop::fillBatch(Input& input) {
  StepReport& report = input.report;
  if (const Status filled = samples_.fill(input.batch); !filled.ok()) {
    return atStep(report.step, report.epoch, filled.error());
  }
  input.assignment = samples_.assignment();
  report.samples = static_cast<uint32_t>(input.batch.size());
  report.sourceBytes = input.batch.sourceBytes();
  return {};
}

Status TrainingLoop::beginPull(Input& input, std::span<float> destination) {
  if (model_.spec().tables.empty()) {
    input.pull = client_.pull(destination);
    return fillBatch(input);  // while the parameters arrive
  }
  PSD_RETURN_IF_ERROR(fillBatch(input));
  input.rows = nullptr;  // which may be used again
  input.rows = rowBatches_.take(client_);
  input.batch.rows().lookups = model_.lookUp(input.batch, Purpose::training);
  input.rows->make(featuresOf(input.batch.rows().lookups));
  input.report.rows = input.rows->rowCount();
  input.pull = client_.pull(destination, input.rows.get());
  return {};
}

Status TrainingLoop::take(std::monostate) {
  PSD_RETURN_IF_ERROR(takeParameters());
  return computeAndPush();
}

Status TrainingLoop::takeParameters() {
  StepReport& report = input_.report;
  const bool spare = input_.pull.has_value();
  Stopwatch stopwatch;
  if (!spare) PSD_RETURN_IF_ERROR(beginPull(input_, model_.parameters()));
  report.computeSeconds = stopwatch.lap();
  const Result<PullInfo> pulled = input_.pull->wait();
  input_.pull.reset();
  if (!pulled.ok()) return atStep(report.step, report.epoch, pulled.error());
  // Not before: a pull that a broken connection interrupts gives the rows other memory.
  if (input_.rows) bindRows(*input_.rows, 0, input_.batch);
  report.pullSeconds = stopwatch.lap();
  report.knownRows = pulled->knownRows;
  report.pullBytes = pulled->bytes;
  if (input_.rows && model_.countsWeights()) report.nonZeroWeights = nonZeroCount(*input_.rows);
  basis_ = pulled->versions;
  if (spare) model_.swapParameters();
  return options_.prefetch ? prefetch() : Status();
}

Status TrainingLoop::prefetch() {
  next_.report = {.step = input_.report.step + 1};
  PSD_ASSIGN_OR_RETURN(const StepSamples::Next next, samples_.take(next_.report, /*wait=*/false));
  if (next != StepSamples::Next::samples) return {};
  const Stopwatch stopwatch;
  PSD_RETURN_IF_ERROR(beginPull(next_, model_.spareParameters()));
  input_.report.computeSeconds += stopwatch.seconds();
  return {};
}

Status TrainingLoop::computeAndPush() {
  StepReport& report = input_.report;
  Stopwatch stopwatch;
  const Result<double> loss = beginPush();
  if (!loss.ok()) return atStep(report.step, report.epoch, loss.error());
  report.loss = *loss;
  report.computeSeconds += stopwatch.lap();
  PSD_RETURN_IF_ERROR(pushes_.reduceTo(options_.inflight));
  report.pushSeconds = stopwatch.lap();
  tally_.describe(report);
  report.gradientBytes = model_.gradients().size_bytes() + (input_.rows ? valueBytes(*input_.rows) : 0);
  report.inflight = pushes_.count();
  return {};
}

Status TrainingLoop::take(LocalStepRunner& local) {
  StepReport& report = input_.report;
  Stopwatch stopwatch;
  const auto here = [&](const Error& error) { return atStep(report.step, report.epoch, error); };
  if (const Status begun = local.begin(); !begun.ok()) return here(begun.error());
  report.pullSeconds = stopwatch.lap();
  PSD_RETURN_IF_ERROR(fillBatch(input_));
  const Result<double> loss = model_.computeGradients(input_.batch);
  if (!loss.ok()) return here(loss.error());
  report.rate = local.step(report.samples);
  report.loss = *loss;
  report.computeSeconds = stopwatch.lap();
  const Status exchanged = local.exchange(report.step == report.totalSteps);
  if (!exchanged.ok()) return here(exchanged.error());
  report.pushSeconds = stopwatch.lap();
  tally_.describe(report);
  report.gradientBytes = model_.gradients().size_bytes();
  return {};
}

Status TrainingLoop::pullRows() {
  if (model_.spec().tables.empty()) return {};
  input_.rows = nullptr;  // which may be used again
  input_.rows = rowBatches_.take(client_);
  input_.rows->make(featuresOf(input_.batch.rows().lookups));
  PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client_.pull({}, input_.rows.get()).wait());
  bindRows(*input_.rows, 0, input_.batch);
  basis_ = pulled.versions;
  input_.report.rows = input_.rows->rowCount();
  input_.report.knownRows = pulled.knownRows;
  input_.report.pullBytes = pulled.bytes;
  if (model_.countsWeights()) input_.report.nonZeroWeights = nonZeroCount(*input_.rows);
  return {};
}

Status TrainingLoop::take(AveragedSteps& averaged) {
  StepReport& report = input_.report;
  const auto here = [&](const Error& error) { return atStep(report.step, report.epoch, error); };
  PSD_RETURN_IF_ERROR(fillBatch(input_));
  if (!model_.spec().tables.empty()) {
    input_.batch.rows().lookups = model_.lookUp(input_.batch, Purpose::training);
  }
  for (bool counted = false; !counted;) {  // repeated if the group broke without applying the step
    Stopwatch stopwatch;
    if (Status ready = averaged.ready(); !ready.ok()) return here(ready.error());
    if (Status taken = pullRows(); !taken.ok()) return here(taken.error());
    report.pullSeconds += stopwatch.lap();
    const Result<double> loss = model_.computeGradients(input_.batch);
    if (!loss.ok()) return here(loss.error());
    report.loss = *loss;
    report.computeSeconds += stopwatch.lap();
    const auto outcome =
        averaged.step(report.samples, report.step == report.totalSteps, Step{++averagedPushes_});
    if (!outcome.ok()) return here(outcome.error());
    report.pushSeconds += stopwatch.lap();
    counted = outcome->counted;
    if (outcome->push) tally_.addAnswer(*outcome->push);
  }
  report.gradientBytes = model_.gradients().size_bytes() + (input_.rows ? valueBytes(*input_.rows) : 0);
  if (input_.rows) {  // only after the average is in the model
    const Stopwatch stopwatch;
    pushes_.add({report.step,
                 report.epoch,
                 report.loss,
                 {},
                 input_.rows,
                 client_.push(Step{++averagedPushes_}, {}, report.samples, basis_, input_.rows.get())});
    PSD_RETURN_IF_ERROR(pushes_.reduceTo(0));
    report.pushSeconds += stopwatch.seconds();
  }
  tally_.describe(report);
  return {};
}

Result<double> TrainingLoop::beginPush() {
  model_.rotateGradients();  // the oldest array, whose push has been answered
  const std::span<const float> gradient = model_.gradients();
  const StepReport& report = input_.report;
  const Step step{report.step};
  const RowBatch* const rows = input_.rows.get();
  const auto sent = [&](double loss, Pending<PushInfo> answer) {
    pushes_.add({report.step, report.epoch, loss, gradient, input_.rows, std::move(answer)});
    return loss;
  };
  if (options_.inflight == 0) {
    PSD_ASSIGN_OR_RETURN(const double loss, model_.computeGradients(input_.batch));
    weigh(0, gradient.size());
    weighRows();
    return sent(loss, client_.push(step, gradient, report.samples, basis_, rows));
  }
  const auto push = client_.beginPush(step, gradient, report.samples, basis_, rows);
  PSD_ASSIGN_OR_RETURN(const double loss,
                       model_.computeGradients(input_.batch, [&](uint64_t begin, uint64_t count) {
                         weigh(begin, count);
                         push->ready(begin, count);
                       }));
  weighRows();
  return sent(loss, push->finish());
}

float TrainingLoop::weight() const {
  return static_cast<float>(input_.assignment.count) / static_cast<float>(options_.batchSize);
}

void TrainingLoop::weigh(uint64_t begin, uint64_t count) {
  if (input_.assignment.scaledByTrainer.empty() || input_.assignment.count == options_.batchSize) return;
  scaleGradient(model_.gradients(), {begin, count}, input_.assignment.scaledByTrainer, weight());
}

void TrainingLoop::weighRows() {
  if (!input_.rows || input_.assignment.count == options_.batchSize) return;
  scaleRowGradients(*input_.rows, input_.assignment.unweightedTables, weight());
}

}  // namespace psd
