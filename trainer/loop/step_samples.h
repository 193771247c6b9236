#pragma once

#include <cstdint>
#include <optional>

#include "common/status/status.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/dataset/epoch_samples.h"
#include "trainer/loop/loop_observer.h"
#include "trainer/loop/loop_options.h"
#include "trainer/loop/sample_pace.h"

namespace psd {

/// The samples of a trainer's steps: successive batches of its share of each epoch, or the daemon's
/// assignments. Owned by one thread; client, data and options outlive it.
class StepSamples {
 public:
  enum class Next { samples, nothingNow, finished };

  StepSamples(Client& client, const Dataset& data, const LoopOptions& options)
      : client_(client), data_(data), options_(options) {}

  /// Call once the membership is known. There are at least as many samples as trainers.
  void begin(const Membership& membership);

  /// Takes the samples of step `report.step` and fills in the position in the run. nothingNow: the remaining
  /// samples are assigned to other trainers, or to steps of this trainer that are not pushed yet; with `wait`
  /// it waits for them.
  Result<Next> take(StepReport& report, bool wait);
  /// Fills the batch with the samples taken last. The error: their file cannot be read.
  Status fill(Batch& batch);
  /// The assignment of these samples; empty if the daemon does not assign samples.
  const AssignedSamples& assignment() const { return assignment_; }
  /// Records the compute time of a step.
  void addComputeTime(uint32_t samples, double seconds) { pace_.add(samples, seconds); }

 private:
  uint64_t stepsPerEpoch() const;
  /// Steps of the whole run; with assigned samples, an estimate of this trainer's steps.
  uint64_t totalSteps() const;
  Result<AssignedSamples> requestSamples(uint64_t step, bool wait);
  void describeAssigned(StepReport& report) const;
  void describePart(StepReport& report) const;

  Client& client_;
  const Dataset& data_;
  const LoopOptions& options_;
  uint32_t worldSize_ = 1;
  std::optional<EpochSamples> part_;  ///< this trainer's; all if the daemon assigns them. Set by begin()
  uint64_t epoch_ = 0;                ///< from 0; of the samples taken last, like the next two
  uint64_t begin_ = 0;                ///< in part_
  uint64_t count_ = 0;
  AssignedSamples assignment_;  ///< the newest assignment
  SamplePace pace_;
};

}  // namespace psd
