#include "test/trials/together.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

namespace psd::trials {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Measures the test accuracy during a trial. Owned by one thread.
class Evaluator {
 public:
  explicit Evaluator(const Setting& setting)
      : setting_(setting), network_(setting.hidden), parameters_(network_.elementCount()) {}

  Status connect() {
    PSD_ASSIGN_OR_RETURN(client_, connectTo(setting_));
    return client_->observe(network_.spec()).status();
  }

  Result<DigitsNetwork::Score> look() {
    PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client_->pull(parameters_).wait());
    return network_.score(parameters_, setting_.test);
  }

 private:
  const Setting& setting_;
  DigitsNetwork network_;
  std::vector<float> parameters_;
  std::unique_ptr<Client> client_;
};

/// JSON has no infinity.
Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// Shared by the threads of one trial.
struct Course {
  std::atomic<bool> over = false;
  std::atomic<uint64_t> steps = 0;
  std::mutex mutex;
  Json stepsOfRanks = Json::object(), samplesOfRanks = Json::object(), errors = Json::array();
};

Status run(DigitsTrainer& trainer, const Barrier& options, uint32_t rank, Course& course) {
  PSD_RETURN_IF_ERROR(trainer.join(options.trainers));
  const uint32_t stepMs = rank == 0 && options.slowStepMs != 0 ? options.slowStepMs : options.stepMs;
  const bool garbage = rank + options.garbage >= options.trainers;
  while (!course.over && trainer.steps() < options.steps) {
    PSD_RETURN_IF_ERROR(options.autoBatch ? trainer.takeDealtSamples() : trainer.drawSamples());
    PSD_RETURN_IF_ERROR(trainer.pull());
    trainer.compute(std::chrono::milliseconds(stepMs));
    if (garbage) trainer.makeGarbage(options.garbageScale);
    PSD_RETURN_IF_ERROR(trainer.push());
    course.steps++;
  }
  return trainer.leave();
}

/// Records the test accuracy periodically until the trial is over.
Status watch(Evaluator& evaluator, const Barrier& options, Clock::time_point begin, Course& course,
             Json& curve) {
  for (bool last = false; !last;) {
    last = course.over || since(begin) > options.seconds;
    const uint64_t steps = course.steps;
    const double seconds = since(begin);
    PSD_ASSIGN_OR_RETURN(const DigitsNetwork::Score score, evaluator.look());
    curve.push_back(
        {{"seconds", seconds}, {"accuracy", score.accuracy}, {"loss", finite(score.loss)}, {"steps", steps}});
    last = last || score.accuracy >= options.accuracy;
    if (!last) std::this_thread::sleep_for(std::chrono::milliseconds(options.evaluateMs));
  }
  return {};
}

}  // namespace

Result<Json> trainTogether(const Setting& setting, const Barrier& options) {
  Course course;
  Json curve = Json::array();
  std::vector<std::thread> threads;
  std::atomic<uint32_t> running = options.trainers;
  for (uint32_t rank = 0; rank < options.trainers; rank++) {
    threads.emplace_back([&, rank] {
      DigitsTrainer trainer(setting, Rank{rank});
      const Status status = run(trainer, options, rank, course);
      const std::lock_guard lock(course.mutex);
      course.stepsOfRanks[std::to_string(rank)] = trainer.steps();
      course.samplesOfRanks[std::to_string(rank)] = trainer.samples();
      if (!status.ok()) course.errors.push_back("rank " + std::to_string(rank) + ": " + status.message());
      if (--running == 0) course.over = true;
    });
  }
  Evaluator evaluator(setting);
  Status watched = Error{ErrorCode::notReady, "no trainer brought a model"};
  while (!watched.ok() && !course.over) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    watched = evaluator.connect();
  }
  if (watched.ok()) watched = watch(evaluator, options, Clock::now(), course, curve);
  course.over = true;
  for (std::thread& thread : threads) thread.join();
  PSD_RETURN_IF_ERROR(watched);
  return Json{{"curve", curve},
              {"steps", course.stepsOfRanks},
              {"samples", course.samplesOfRanks},
              {"errors", course.errors}};
}

Result<Json> trainDelayed(const Setting& setting, const Delayed& options) {
  const uint32_t count = options.delay + 1;
  std::vector<std::unique_ptr<DigitsTrainer>> trainers;
  for (uint32_t rank = 0; rank < count; rank++) {
    trainers.push_back(std::make_unique<DigitsTrainer>(setting, Rank{rank}));
    PSD_RETURN_IF_ERROR(trainers.back()->join(count));
    PSD_RETURN_IF_ERROR(trainers.back()->pull());
  }
  Evaluator evaluator(setting);
  PSD_RETURN_IF_ERROR(evaluator.connect());
  Json curve = Json::array();
  for (uint64_t step = 0; step <= options.steps; step++) {
    if (step % options.evaluateEvery == 0 || step == options.steps) {
      PSD_ASSIGN_OR_RETURN(const DigitsNetwork::Score score, evaluator.look());
      curve.push_back({{"steps", step}, {"accuracy", score.accuracy}, {"loss", finite(score.loss)}});
    }
    if (step == options.steps) break;
    DigitsTrainer& trainer = *trainers[step % count];
    PSD_RETURN_IF_ERROR(trainer.drawSamples());
    trainer.compute();
    PSD_RETURN_IF_ERROR(trainer.push());
    PSD_RETURN_IF_ERROR(trainer.pull());
  }
  for (const auto& trainer : trainers) PSD_RETURN_IF_ERROR(trainer->leave());
  return Json{{"curve", curve}};
}

}  // namespace psd::trials
