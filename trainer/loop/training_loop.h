#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/dataset/sharder.h"
#include "trainer/loop/loop_observer.h"
#include "trainer/model/model.h"

namespace psd {

struct LoopOptions {
  Membership membership;
  uint32_t batchSize = 32;  ///< samples per step; the last step of an epoch takes what is left
  uint64_t epochs = 1;
  uint64_t steps = 0;  ///< if not 0: train this many steps instead of whole epochs
  uint64_t seed = 1;   ///< of the order of the samples; the same for all trainers
};

/// What one trainer did. A value type.
struct TrainingSummary {
  uint64_t steps = 0;
  uint64_t samples = 0;
  double seconds = 0;
  double loss = 0;  ///< mean over the samples of the last epoch, as far as it went
  double stalenessMean = 0;
  uint64_t stalenessMax = 0;
  bool interrupted = false;  ///< shouldStop() ended it early
};

/// One trainer's work: join, then per step pull, compute, push. Owned by one thread, like the client and
/// the model it is given, which outlive it.
class TrainingLoop {
 public:
  /// rank < worldSize <= train.sampleCount(), and checkFit(model, train).
  TrainingLoop(Client& client, Model& model, const Dataset& train, const LoopOptions& options);

  /// Becomes a trainer; brings the model's values if it is the first.
  Result<JoinInfo> join();

  /// Trains to the end, or until shouldStop() (asked between steps) says so. Errors name the step. Does not
  /// leave: the caller does, after the last pull that it wants.
  Result<TrainingSummary> run(const std::vector<LoopObserver*>& observers,
                              const std::function<bool()>& shouldStop);

 private:
  uint64_t stepsPerEpoch() const;
  uint64_t totalSteps() const;
  void fillBatch(uint64_t step);
  Result<StepReport> runStep(uint64_t step);
  /// Fills the seconds, loss, samples and staleness of `report`. Errors do not name the step yet.
  Status pullComputePush(StepReport& report);
  Error explainNonFinite(const Error& refusal, double loss) const;

  Client& client_;
  Model& model_;
  const Dataset& train_;
  LoopOptions options_;
  Sharder sharder_;
  std::vector<uint32_t> part_;  ///< this trainer's samples in the current epoch
  Batch batch_;
};

}  // namespace psd
