#include "test/trials/together.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <random>
#include <thread>

#include "test/trials/digits_network.h"
#include "trainer/client/client.h"

namespace psd::trials {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Result<std::unique_ptr<Client>> connectTo(const Setting& setting) {
  ClientOptions options;
  options.servers = {setting.server};
  return Client::connect(options);
}

/// A trainer: pulls, computes on random samples, pushes. Owned by one thread.
class Trainer {
 public:
  Trainer(const Setting& setting, Rank rank)
      : setting_(setting),
        rank_(rank),
        random_(setting.seed * 1000 + rank.value),
        parameters_(network_.elementCount()),
        gradient_(network_.elementCount()) {}

  Status join(uint32_t worldSize) {
    PSD_ASSIGN_OR_RETURN(client_, connectTo(setting_));
    const std::vector<float> initial = network_.initialValues(setting_.seed);
    return client_->join({rank_, worldSize}, network_.spec(), [&] { return std::span<const float>(initial); })
        .status();
  }

  Status pull() {
    PSD_ASSIGN_OR_RETURN(pulled_, client_->pull(parameters_).wait());
    return {};
  }

  void compute() {
    std::uniform_int_distribution<uint32_t> sample(0, static_cast<uint32_t>(setting_.trainSamples) - 1);
    std::vector<uint32_t> indices(setting_.batchSize);
    for (uint32_t& index : indices) index = sample(random_);
    setting_.train->fill(indices, batch_);
    network_.gradient(parameters_, batch_, gradient_);
  }

  void makeGarbage(double scale) {
    std::normal_distribution<double> normal(0, scale);
    for (float& value : gradient_) value = static_cast<float>(normal(random_));
  }

  Status push() {
    return client_
        ->push(Step{++steps_}, gradient_, static_cast<uint32_t>(setting_.batchSize), pulled_.versions)
        .wait()
        .status();
  }

  Status leave() { return client_->leave(); }
  uint64_t steps() const { return steps_; }

 private:
  const Setting& setting_;
  const Rank rank_;
  DigitsNetwork network_;
  std::mt19937_64 random_;
  std::vector<float> parameters_, gradient_;
  Batch batch_;
  std::unique_ptr<Client> client_;
  PullInfo pulled_;
  uint64_t steps_ = 0;
};

/// Looks at the test accuracy from beside. Owned by one thread.
class Evaluator {
 public:
  explicit Evaluator(const Setting& setting) : setting_(setting), parameters_(network_.elementCount()) {}

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

/// JSON knows no infinity.
Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// What the threads of one trial share.
struct Course {
  std::atomic<bool> over = false;
  std::atomic<uint64_t> steps = 0;
  std::mutex mutex;
  Json stepsOfRanks = Json::object(), errors = Json::array();
};

Status run(Trainer& trainer, const Together& options, uint32_t rank, Course& course) {
  PSD_RETURN_IF_ERROR(trainer.join(options.trainers));
  const uint32_t sleepMs = rank == 0 && options.slowStepMs != 0 ? options.slowStepMs : options.stepMs;
  const bool garbage = rank + options.garbage >= options.trainers;
  while (!course.over && trainer.steps() < options.steps) {
    PSD_RETURN_IF_ERROR(trainer.pull());
    trainer.compute();
    if (garbage) trainer.makeGarbage(options.garbageScale);
    std::this_thread::sleep_for(std::chrono::milliseconds(sleepMs));
    PSD_RETURN_IF_ERROR(trainer.push());
    course.steps++;
  }
  return trainer.leave();
}

/// Until the trial is over: notes the test accuracy now and then.
Status watch(Evaluator& evaluator, const Together& options, Clock::time_point begin, Course& course,
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

Result<Json> trainTogether(const Setting& setting, const Together& options) {
  Course course;
  Json curve = Json::array();
  std::vector<std::thread> threads;
  std::atomic<uint32_t> running = options.trainers;
  for (uint32_t rank = 0; rank < options.trainers; rank++) {
    threads.emplace_back([&, rank] {
      Trainer trainer(setting, Rank{rank});
      const Status status = run(trainer, options, rank, course);
      const std::lock_guard lock(course.mutex);
      course.stepsOfRanks[std::to_string(rank)] = trainer.steps();
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
  return Json{{"curve", curve}, {"steps", course.stepsOfRanks}, {"errors", course.errors}};
}

Result<Json> trainDelayed(const Setting& setting, const Delayed& options) {
  const uint32_t count = options.delay + 1;
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (uint32_t rank = 0; rank < count; rank++) {
    trainers.push_back(std::make_unique<Trainer>(setting, Rank{rank}));
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
    Trainer& trainer = *trainers[step % count];
    trainer.compute();
    PSD_RETURN_IF_ERROR(trainer.push());
    PSD_RETURN_IF_ERROR(trainer.pull());
  }
  for (const auto& trainer : trainers) PSD_RETURN_IF_ERROR(trainer->leave());
  return Json{{"curve", curve}};
}

}  // namespace psd::trials
