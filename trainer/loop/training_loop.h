#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/loop/averaged_steps.h"
#include "trainer/loop/fragment_steps.h"
#include "trainer/loop/loop_observer.h"
#include "trainer/loop/loop_options.h"
#include "trainer/loop/own_steps.h"
#include "trainer/loop/pushes_in_flight.h"
#include "trainer/loop/rows_of_batch.h"
#include "trainer/loop/step_samples.h"
#include "trainer/loop/tally.h"
#include "trainer/model/model.h"

namespace psd {

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
  /// What a step computes with, beside the parameters.
  struct Input {
    StepReport report;
    DealtSamples dealt;
    Batch batch;
    std::shared_ptr<RowBatch> rows;         ///< of `batch`; null: the model has no tables
    std::optional<Pending<PullInfo>> pull;  ///< under way: of the parameters and rows
  };

  Status checkLocalSteps(const JoinInfo& info) const;
  Status checkAveraging(const JoinInfo& info) const;
  /// The newest parameters that this trainer has, in host memory.
  std::span<const float> newestParameters();
  /// Takes one step after the other. True if shouldStop() ended that.
  Result<bool> runSteps(const std::vector<LoopObserver*>& observers, const std::function<bool()>& shouldStop);
  /// Makes `step` the one that input_ is of. Whether there is such a step.
  Result<bool> takeStep(uint64_t step);
  /// Fills the batch with the samples that were taken.
  void fillBatch(Input& input);
  /// Fills the batch, and begins to bring its rows, and the parameters into `destination`.
  void beginPull(Input& input, std::span<float> destination);
  /// Brings the parameters and rows of the step, and, if it is to be, begins with those of the next one.
  Status takeParameters();
  Status prefetch();
  /// Computes the gradient of the step and pushes it. Fills the seconds, loss and staleness of the report.
  /// Errors name the step.
  Status computeAndPush();
  /// Takes a step under a policy of local steps, in place of takeParameters() and computeAndPush().
  Status takeOwnStep();
  /// Exchanges what is due after such a step.
  Status exchange();
  /// Takes a step under allreduce, in place of takeParameters() and computeAndPush(). Errors name the step.
  Status takeAveragedStep(AveragedSteps& averaged);
  /// Brings the rows of the batch, whose lookups are there.
  Status takeRows();
  Result<double> beginPush();
  /// Scales elements of the gradient, which are final, by the samples behind it where no policy does that.
  void weigh(uint64_t begin, uint64_t count);
  void weighRows();
  float weight() const;

  Client& client_;
  Model& model_;
  const Dataset& train_;
  LoopOptions options_;
  StepSamples samples_;
  RowBatchPool rowBatches_;
  Input input_;                 ///< of the current step
  Input next_;                  ///< prefetched, if its pull is under way: into model_.spareParameters()
  std::vector<Version> basis_;  ///< of model_.parameters() and the rows of input_
  Tally tally_;
  PushesInFlight pushes_;
  // Under a policy of local steps one of the first two, under allreduce the third.
  std::optional<OwnSteps> own_;
  std::optional<FragmentSteps> fragments_;
  std::optional<AveragedSteps> averaged_;
  uint64_t exchanges_ = 0;  ///< begun under one of these
};

}  // namespace psd
