// Trainers of different speed whose batches the daemon sizes, round by round, in virtual time: what they
// measure is what they report, and what they are given is what they measure next.

#include <cmath>
#include <vector>

#include "server/membership/batch_sizes.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "trainer/loop/sample_pace.h"

namespace psd::batch_simulation_test {
namespace {

constexpr uint32_t kNominal = 64;

/// A trainer that takes a while for every step, whatever its size, and then for every sample.
struct Virtual {
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

/// Every trainer takes a batch, makes its step and waits for the others. `noise`: by how much of their time
/// steps may take longer.
void round(BatchSizes& sizes, std::vector<Virtual>& trainers, testing::Random& random, double noise) {
  for (Virtual& trainer : trainers) {
    PSD_REQUIRE_OK(sizes.report(trainer.session, {kNominal, 8 * kNominal, trainer.pace.sampleSeconds()}));
    trainer.batch = sizes.sizeFor(trainer.session);
    const bool heldUp = noise > 0 && random.oneIn(100);  // by something else
    trainer.pace.add(trainer.batch, trainer.seconds() * (heldUp ? 10 : 1 + drawn(random, 0, noise)));
  }
}

/// Whether all take as long: within `slack`, and the half sample that cannot be had.
void checkAlike(const std::vector<Virtual>& trainers, double slack) {
  double mean = 0;
  for (const Virtual& trainer : trainers) mean += trainer.seconds() / static_cast<double>(trainers.size());
  uint64_t samples = 0;
  for (const Virtual& trainer : trainers) {
    INFO("session " << trainer.session.value << ", batch " << trainer.batch << ", " << trainer.seconds()
                    << " s, mean " << mean << " s");
    CHECK(std::abs(trainer.seconds() - mean) <= slack * mean + trainer.sampleSeconds);
    samples += trainer.batch;
  }
  CHECK(samples + trainers.size() >= trainers.size() * kNominal);
  CHECK(samples <= trainers.size() * (kNominal + 1));
}

Virtual make(uint64_t session, testing::Random& random) {
  const double sampleSeconds = drawn(random, 0.001, 0.008);
  return {SessionId{session}, drawn(random, 0, 8) * sampleSeconds, sampleSeconds, {}, 0};
}

TEST_CASE("after some rounds trainers of speeds 1 to 5 take as long for a step") {
  testing::Random random(1);
  BatchSizes sizes;
  std::vector<Virtual> trainers = {{SessionId{1}, 0, 0.005, {}, 0}, {SessionId{2}, 0, 0.001, {}, 0}};
  for (int i = 0; i < 5; i++) round(sizes, trainers, random, 0);
  CHECK(trainers[0].batch == kNominal);  // nobody is known
  for (int i = 0; i < 3; i++) round(sizes, trainers, random, 0);
  CHECK(trainers[0].batch == 21);
  CHECK(trainers[1].batch == 107);
}

TEST_CASE("seconds per step become alike whatever the speeds, and again after one changes, leaves or joins") {
  constexpr int kSettle = 30;
  constexpr double kNoise = 0.1;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    INFO("seed " << seed);
    testing::Random random(seed);
    BatchSizes sizes;
    std::vector<Virtual> trainers;
    for (uint64_t i = random.between(2, 8); i > 0; i--) trainers.push_back(make(i, random));
    const auto settle = [&] {
      for (int i = 0; i < kSettle; i++) round(sizes, trainers, random, kNoise);
      checkAlike(trainers, kNoise);
    };
    settle();
    Virtual& changed = trainers[random.below(trainers.size())];
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
