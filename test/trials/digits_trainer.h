#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "test/trials/digits_network.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/loop/sample_pace.h"

namespace psd::trials {

/// Settings of every trial.
struct Setting {
  std::string server;
  uint64_t batchSize = 32;
  uint64_t hidden = 32;  ///< units of the network's hidden layer
  uint64_t seed = 1;
  const Dataset* train = nullptr;  ///< its first trainSamples are used
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
  /// The next step uses batchSize random samples.
  Status drawSamples();
  /// The next step uses samples that the daemon assigns, in proportion to this trainer's speed.
  Status takeDealtSamples();
  /// Computes the gradient. `time`: computation time of batchSize samples with a larger model, spent
  /// sleeping.
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
  std::vector<uint32_t> order_;  // of the assigned epoch
  AssignedSamples assigned_;
  SamplePace pace_;
};

}  // namespace psd::trials
