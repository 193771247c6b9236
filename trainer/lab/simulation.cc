#include "trainer/lab/simulation.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "trainer/lab/scheduled_client.h"
#include "trainer/lab/virtual_model.h"
#include "trainer/loop/training_loop.h"

namespace psd {
namespace {

constexpr uint64_t kEndless = 1ull << 40;  // steps per trainer; the schedule ends the run instead

}  // namespace

struct Simulation::Trainer {
  Rank rank;
  std::unique_ptr<Client> client;  ///< created and used by `thread`; the director calls interrupt()
  std::optional<Result<TrainingSummary>> outcome;
  JoinInfo joined;
  uint64_t bytesPulled = 0, bytesPushed = 0;
  std::thread thread;
};

Simulation::Simulation(const SimulationOptions& options, StepTimes schedule, Model& model,
                       const Dataset& data, Connect connect)
    : options_(options),
      schedule_(std::move(schedule)),
      model_(model),
      data_(data),
      connect_(std::move(connect)),
      turns_(options.trainers),
      paces_(turns_) {}

Simulation::~Simulation() {
  for (const auto& trainer : trainers_) {
    if (trainer->thread.joinable()) trainer->thread.join();
  }
}

// --- Trainer threads -------------------------------------------------------------------------------------

Result<TrainingSummary> Simulation::train(Trainer& trainer) {
  const Rank rank = trainer.rank;
  PSD_ASSIGN_OR_RETURN(trainer.client, connect_(options_.client));
  std::optional<PushedNoise> noise;
  if (rank.value >= options_.trainers - options_.byzantine) {
    noise.emplace(model_.spec(), options_.byzantineDeviation, Random(options_.seed, rank.value).next());
  }
  ScheduledClient client(*trainer.client, turns_, paces_, rank, std::move(noise));
  VirtualModel model(model_, [&] { return turns_.sleep(rank, schedule_.next(rank)); });
  TrainingLoop loop(client, model, data_,
                    {.membership = {rank, options_.trainers},
                     .batchSize = options_.batchSize,
                     .steps = kEndless,
                     .seed = options_.seed});
  Result<TrainingSummary> summary = [&]() -> Result<TrainingSummary> {
    PSD_ASSIGN_OR_RETURN(trainer.joined, loop.join());
    if (!turns_.sleep(rank, 0)) return TrainingSummary{};
    return loop.run({}, [&] { return turns_.over(); });
  }();
  trainer.bytesPulled = client.bytesPulled();
  trainer.bytesPushed = client.bytesPushed();
  if (!summary.ok()) {
    client.interrupt();  // no orderly leave() after an error
    return summary;
  }
  PSD_RETURN_IF_ERROR(client.leave());
  return summary;
}

// --- Director thread -------------------------------------------------------------------------------------

Status Simulation::begin() {
  for (uint32_t rank = 0; rank < options_.trainers; rank++) {
    Trainer& trainer = *trainers_.emplace_back(std::make_unique<Trainer>());
    trainer.rank = Rank{rank};
    trainer.thread = std::thread([this, &trainer] {
      turns_.awaitFirstTurn(trainer.rank);
      trainer.outcome = turns_.over() ? TrainingSummary{} : train(trainer);
      trainer.client = nullptr;
      turns_.end(trainer.rank);
    });
  }
  for (const auto& trainer : trainers_) {
    turns_.run(trainer->rank);
    PSD_RETURN_IF_ERROR(firstError());
  }
  report_.joined = trainers_.front()->joined;
  ClientOptions reading = options_.client;  // the observer reads exact values
  reading.codec.clear();
  reading.pullCodec.clear();
  PSD_ASSIGN_OR_RETURN(observer_, connect_(reading));
  return observer_->observe(model_.spec()).status();
}

Result<SimulationReport> Simulation::run(const Scorer& scorer, const std::function<bool()>& shouldStop) {
  Status done = begin();
  if (done.ok()) done = takeSteps(scorer, shouldStop);
  finish();
  if (!done.ok() && done.error().code == ErrorCode::nonFinite) {
    report_.diverged = done.message();
    done = {};
  }
  PSD_RETURN_IF_ERROR(done);
  for (const auto& trainer : trainers_) {
    report_.trainers.push_back(trainer->outcome->ok() ? trainer->outcome->value() : TrainingSummary{});
    report_.bytesPulled += trainer->bytesPulled;
    report_.bytesPushed += trainer->bytesPushed;
  }
  return report_;
}

Status Simulation::takeSteps(const Scorer& scorer, const std::function<bool()>& shouldStop) {
  for (const Rank rank : turns_.in(Turns::State::sleeps))
    PSD_RETURN_IF_ERROR(runUntilIdle(rank));  // first pulls
  for (;;) {
    PSD_RETURN_IF_ERROR(settle());
    const std::optional<Rank> next = turns_.firstToWake();
    if (!next) return noProgressError();
    const double wakes = turns_.wakesAt(*next);
    if (ends(wakes, shouldStop)) return score(scorer);
    if (options_.scoreEvery != 0 && report_.end.steps >= scored_ + options_.scoreEvery) {
      PSD_RETURN_IF_ERROR(score(scorer));
    }
    turns_.setNow(wakes);
    report_.end = {report_.end.steps + 1, wakes};
    PSD_RETURN_IF_ERROR(runUntilIdle(*next));
  }
}

bool Simulation::ends(double next, const std::function<bool()>& shouldStop) {
  report_.interrupted = shouldStop();
  if (options_.time && next > *options_.time) {
    if (!report_.interrupted) report_.end.time = *options_.time;
    return true;
  }
  return report_.interrupted || (options_.steps && report_.end.steps >= *options_.steps);
}

Status Simulation::score(const Scorer& scorer) {
  scored_ = report_.end.steps;
  return scorer(*observer_, report_.end);
}

Result<std::vector<Rank>> Simulation::waiters() { return observer_->waiters(); }

Status Simulation::runUntilIdle(Rank rank) {
  for (;;) {
    turns_.run(rank);
    PSD_RETURN_IF_ERROR(firstError());
    if (turns_.state(rank) != Turns::State::calls) return {};
    // A trainer that the daemon does not report as waiting gets its answer soon; run it again.
    PSD_ASSIGN_OR_RETURN(const std::vector<Rank> waiting, waiters());
    if (std::ranges::find(waiting, rank) != waiting.end()) return {};
  }
}

Status Simulation::settle() {
  for (bool moved = true; moved;) {
    const std::vector<Rank> calling = turns_.in(Turns::State::calls);
    if (calling.empty()) return {};
    PSD_ASSIGN_OR_RETURN(const std::vector<Rank> waiting, waiters());
    moved = false;
    for (const Rank rank : calling) {
      if (std::ranges::find(waiting, rank) != waiting.end()) continue;
      PSD_RETURN_IF_ERROR(runUntilIdle(rank));
      moved = true;
    }
  }
  return {};
}

void Simulation::finish() {
  turns_.endRun();
  for (const Rank rank : turns_.in(Turns::State::sleeps)) turns_.run(rank);
  // Lets the trainers that waited for these finish. Errors are already reported or no longer matter.
  if (observer_) (void)settle();
  for (const Rank rank : turns_.in(Turns::State::calls)) {
    trainers_[rank.value]->client->interrupt();
    while (turns_.state(rank) == Turns::State::calls) turns_.run(rank);
  }
  for (const auto& trainer : trainers_) trainer->thread.join();
}

Status Simulation::firstError() const {
  for (const auto& trainer : trainers_) {
    if (!trainer->outcome || trainer->outcome->ok()) continue;
    const Error& error = trainer->outcome->error();
    return Error{error.code, "virtual trainer " + std::to_string(trainer->rank.value) + ": " + error.message};
  }
  return {};
}

Error Simulation::noProgressError() const {
  return {ErrorCode::notReady, "all " + std::to_string(options_.trainers) +
                                   " virtual trainers wait for more trainers to join (policy " +
                                   report_.joined.policy +
                                   "); check its quorum, world_size and start_trainers"};
}

}  // namespace psd
