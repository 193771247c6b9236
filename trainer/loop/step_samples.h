#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/dataset/sharder.h"
#include "trainer/loop/loop_observer.h"
#include "trainer/loop/loop_options.h"
#include "trainer/loop/sample_pace.h"

namespace psd {

/// Which samples a trainer's steps have: step by step of its share of each epoch, or what the daemon deals.
/// Owned by one thread, like the client; that, data and options outlive it.
class StepSamples {
 public:
  enum class Next { samples, nothingNow, finished };

  StepSamples(Client& client, const Dataset& data, const LoopOptions& options)
      : client_(client), data_(data), options_(options) {}

  /// Once it is known who this trainer is. There are as many samples as trainers at least.
  void begin(const Membership& membership);

  /// Takes the samples of step `report.step`, and says in `report` where in the run it is. nothingNow: others
  /// have what is left, or this trainer's own steps that are not pushed yet; with `wait` that is waited for.
  Result<Next> take(StepReport& report, bool wait);
  /// Fills in the samples that were taken last.
  void fill(Batch& batch);
  /// The deal of these; without a plan of the daemon's one of nothing.
  const DealtSamples& dealt() const { return dealt_; }
  /// A step of so many samples took so long to compute.
  void took(uint32_t samples, double seconds) { pace_.add(samples, seconds); }

 private:
  uint64_t stepsPerEpoch() const;
  /// Steps of the whole run; with dealt samples, about as many as will come to this trainer.
  uint64_t totalSteps() const;
  Result<DealtSamples> ask(uint64_t step, bool wait);
  void describeDealt(StepReport& report) const;
  void describeShare(StepReport& report) const;

  Client& client_;
  const Dataset& data_;
  const LoopOptions& options_;
  uint32_t worldSize_ = 1;
  std::optional<Sharder> sharder_;  ///< once begun
  std::vector<uint32_t> part_;  ///< this trainer's samples in the current epoch, or all where they are dealt
  std::optional<uint64_t> partEpoch_;  ///< from 0
  uint64_t epoch_ = 0;                 ///< from 0; of the samples that were taken last, like the next two
  uint64_t begin_ = 0;                 ///< in part_
  uint64_t count_ = 0;
  DealtSamples dealt_;  ///< the newest
  SamplePace pace_;
};

}  // namespace psd
