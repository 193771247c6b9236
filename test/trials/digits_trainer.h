#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "test/trials/digits_network.h"
#include "trainer/client/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/loop/sample_pace.h"

namespace psd::trials {

/// What every trial needs.
struct Setting {
  std::string server;
  uint64_t batchSize = 32;
  uint64_t hidden = 32;  ///< units of the network's hidden layer
  uint64_t seed = 1;
  const Dataset* train = nullptr;  ///< the first trainSamples of it
  uint64_t trainSamples = 0;
  Batch test;
};

Result<std::unique_ptr<Client>> connectTo(const Setting& setting);

/// A trainer of a DigitsNetwork: gets samples, pulls, computes, pushes. Owned by one thread.
class DigitsTrainer {
 public:
  DigitsTrainer(const Setting& setting, Rank rank);

  Status join(uint32_t worldSize);
  Status pull();
  /// The next step is on batchSize samples drawn by lot.
  Status drawSamples();
  /// It is on samples that the daemon deals, as many as go with this trainer's speed.
  Status takeDealtSamples();
  /// The gradient. `time` is how long batchSize samples of a larger model would take, and passes as well.
  void compute(std::chrono::milliseconds time = {});
  void makeGarbage(double scale);
  Status push();
  Status leave() { return client_->leave(); }

  uint64_t steps() const { return steps_; }
  uint64_t samples() const { return samples_; }  ///< of all steps

 private:
  void shuffle(uint64_t epoch);

  const Setting& setting_;
  const Rank rank_;
  DigitsNetwork network_;
  std::mt19937_64 random_;
  std::vector<float> parameters_, gradient_;
  std::unique_ptr<Client> client_;
  PullInfo pulled_;
  uint64_t steps_ = 0, samples_ = 0;
  Batch batch_;
  std::vector<uint32_t> order_;  // of the dealt epoch
  DealtSamples dealt_;
  SamplePace pace_;
};

}  // namespace psd::trials
