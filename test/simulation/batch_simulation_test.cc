// Trainers of different speed whose batches the daemon sizes, round by round, in virtual time: they report
// what they measure, and measure next what they are assigned.

#include <cmath>
#include <vector>

#include "server/membership/batch_sizes.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "trainer/loop/sample_pace.h"

namespace psd::batch_simulation_test {
namespace {

constexpr uint32_t kNominal = 64;

/// A trainer that takes a fixed time for every step, and a time for every sample.
struct SimulatedTrainer {
  SessionId session;
  double stepSeconds = 0, sampleSeconds = 0;
  SamplePace pace;
  uint32_t batch = 0;

  double seconds() const { return stepSeconds + batch * sampleSeconds; }
};

/// A uniform number.
double drawn(testing::Random& random, double min, double max) {
  return min + (max - min) * static_cast<double>(random.between(0, 1'000'000)) / 1e6;
}

/// Every trainer takes a batch, makes its step and waits for the others. `noise`: the maximum relative
/// increase of a step's time.
void round(BatchSizes& sizes, std::vector<SimulatedTrainer>& trainers, testing::Random& random,
           double noise) {
  for (SimulatedTrainer& trainer : trainers) {
    PSD_REQUIRE_OK(sizes.report(trainer.session, {kNominal, 8 * kNominal, trainer.pace.sampleSeconds()}));
    trainer.batch = sizes.sizeFor(trainer.session);
    const bool heldUp = noise > 0 && random.oneIn(100);  // by an outlier
    trainer.pace.add(trainer.batch, trainer.seconds() * (heldUp ? 10 : 1 + drawn(random, 0, noise)));
  }
}

/// Whether all take equally long: within `slack`, and the half sample of rounding.
void checkEqualTimes(const std::vector<SimulatedTrainer>& trainers, double slack) {
  double mean = 0;
  for (const SimulatedTrainer& trainer : trainers)
    mean += trainer.seconds() / static_cast<double>(trainers.size());
  uint64_t samples = 0;
  for (const SimulatedTrainer& trainer : trainers) {
    INFO("session " << trainer.session.value << ", batch " << trainer.batch << ", " << trainer.seconds()
                    << " s, mean " << mean << " s");
    CHECK(std::abs(trainer.seconds() - mean) <= slack * mean + trainer.sampleSeconds);
    samples += trainer.batch;
  }
  CHECK(samples + trainers.size() >= trainers.size() * kNominal);
  CHECK(samples <= trainers.size() * (kNominal + 1));
}

SimulatedTrainer make(uint64_t session, testing::Random& random) {
  const double sampleSeconds = drawn(random, 0.001, 0.008);
  return {SessionId{session}, drawn(random, 0, 8) * sampleSeconds, sampleSeconds, {}, 0};
}

TEST_CASE("after some rounds trainers of speeds 1 to 5 take equally long for a step") {
  testing::Random random(1);
  BatchSizes sizes;
  std::vector<SimulatedTrainer> trainers = {{SessionId{1}, 0, 0.005, {}, 0}, {SessionId{2}, 0, 0.001, {}, 0}};
  for (int i = 0; i < 5; i++) round(sizes, trainers, random, 0);
  CHECK(trainers[0].batch == kNominal);  // none is measured
  for (int i = 0; i < 3; i++) round(sizes, trainers, random, 0);
  CHECK(trainers[0].batch == 21);
  CHECK(trainers[1].batch == 107);
}

TEST_CASE("seconds per step converge for any speeds, and again after one changes, leaves or joins") {
  constexpr int kSettle = 30;
  constexpr double kNoise = 0.1;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    INFO("seed " << seed);
    testing::Random random(seed);
    BatchSizes sizes;
    std::vector<SimulatedTrainer> trainers;
    for (uint64_t i = random.between(2, 8); i > 0; i--) trainers.push_back(make(i, random));
    const auto settle = [&] {
      for (int i = 0; i < kSettle; i++) round(sizes, trainers, random, kNoise);
      checkEqualTimes(trainers, kNoise);
    };
    settle();
    SimulatedTrainer& changed = trainers[random.below(trainers.size())];
    changed.sampleSeconds *= drawn(random, 0.3, 3);
    settle();
    sizes.leave(trainers.back().session);
    trainers.pop_back();
    settle();
    trainers.push_back(make(100, random));
    settle();
  }
}

}  // namespace
}  // namespace psd::batch_simulation_test
