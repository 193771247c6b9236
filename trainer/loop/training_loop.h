#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/dataset/sharder.h"
#include "trainer/loop/loop_observer.h"
#include "trainer/loop/own_steps.h"
#include "trainer/loop/pushes_in_flight.h"
#include "trainer/loop/sample_pace.h"
#include "trainer/loop/tally.h"
#include "trainer/model/model.h"

namespace psd {

/// A batch of which the daemon chooses the size has at most so many times LoopOptions::batchSize samples.
inline constexpr uint32_t kAutoBatchMost = 8;

struct LoopOptions {
  Membership membership;
  uint32_t batchSize = 32;  ///< samples per step; the last step of an epoch takes what is left
  uint64_t epochs = 1;
  uint64_t steps = 0;  ///< if not 0: train this many steps instead of whole epochs
  uint64_t seed = 1;   ///< of the order of the samples; the same for all trainers
  /// Pushes that may be unanswered when the next step begins; 0: each is waited for. If not 0, gradients are
  /// sent while the rest of them is computed.
  uint32_t inflight = 0;
  /// Whether the daemon deals the samples, step by step, instead of a fixed part to each rank. Then `steps`
  /// is 0.
  bool dealtSamples = false;
  /// With dealtSamples: the daemon chooses the size of each batch, so that all trainers compute as long for a
  /// step, and together have about as many samples as with `batchSize` each.
  bool autoBatch = false;
  /// Whether the parameters of the next step are pulled while this one computes.
  bool prefetch = false;
  /// The model as the daemon knows it, if other than by its own names.
  std::optional<ModelSpec> presentedAs = {};
};

/// One trainer's work: join, then per step pull, compute, push, one after the other or overlapping as the
/// options say; or, where the policy is one of local steps, steps by itself with exchanges between them.
/// Owned by one thread, like the client and the model it is given, which outlive it.
class TrainingLoop {
 public:
  /// checkFit(model, train).
  TrainingLoop(Client& client, Model& model, const Dataset& train, const LoopOptions& options);

  /// Becomes a trainer; brings the model's values if it is the first. Refused (invalidArgument) where there
  /// are more trainers than samples.
  Result<JoinInfo> join();
  /// Who this trainer is; once joined, with the rank that it was given.
  const Membership& membership() const { return options_.membership; }

  /// Trains to the end, or until shouldStop() (asked between steps) says so; once. Errors name the step. When
  /// it returns nothing is under way. Does not leave: the caller does, after the last pull that it wants.
  Result<TrainingSummary> run(const std::vector<LoopObserver*>& observers,
                              const std::function<bool()>& shouldStop);

 private:
  /// The newest parameters that this trainer has, in host memory.
  std::span<const float> newestParameters();
  uint64_t stepsPerEpoch() const;
  /// Steps of the whole run; with dealt samples, about as many as will come to this trainer.
  uint64_t totalSteps() const;
  void fillBatch(const StepReport& report);
  /// Whether there is another step. With dealt samples this gets them.
  Result<bool> takeStep(StepReport& report);
  Result<DealtSamples> takeSamples(uint64_t step);
  /// Takes one step after the other. True if shouldStop() ended that.
  Result<bool> runSteps(const std::vector<LoopObserver*>& observers, const std::function<bool()>& shouldStop);
  void describe(StepReport& report) const;
  /// Brings the parameters of a step, and fills its batch. Fills the seconds and samples of `report`. Errors
  /// name the step.
  Status takeParameters(StepReport& report);
  /// Computes the gradient of a step and pushes it. Fills the seconds, loss and staleness of `report`. Errors
  /// name the step.
  Status computeAndPush(StepReport& report);
  /// Takes a step under a policy of local steps, in place of takeParameters() and computeAndPush().
  Status takeOwnStep(OwnSteps& own, StepReport& report);
  Result<double> beginPush(const StepReport& report);
  /// Scales elements of the gradient, which are final, by the samples behind it where no policy does that.
  void weigh(uint64_t begin, uint64_t count);

  Client& client_;
  Model& model_;
  const Dataset& train_;
  LoopOptions options_;
  std::optional<Sharder> sharder_;  ///< once joined
  std::vector<uint32_t> part_;  ///< this trainer's samples in the current epoch, or all where they are dealt
  uint64_t partEpoch_ = 0;      ///< from 0
  DealtSamples dealt_;          ///< the newest
  SamplePace pace_;
  Batch batch_;
  std::vector<Version> basis_;                   ///< of model_.parameters()
  std::optional<Pending<PullInfo>> prefetched_;  ///< fills model_.spareParameters()
  Tally tally_;
  PushesInFlight pushes_;
  std::optional<OwnSteps> own_;  ///< under a policy of local steps
  uint64_t exchanges_ = 0;       ///< begun
};

}  // namespace psd
