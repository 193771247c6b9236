#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/loop/averaged_steps.h"
#include "trainer/loop/local_step_runner.h"
#include "trainer/loop/loop_observer.h"
#include "trainer/loop/loop_options.h"
#include "trainer/loop/pushes_in_flight.h"
#include "trainer/loop/rows_of_batch.h"
#include "trainer/loop/step_samples.h"
#include "trainer/loop/tally.h"
#include "trainer/model/model.h"

namespace psd {

/// One trainer's run: join, then pull, compute and push per step, sequentially or overlapped according to the
/// options; or, under a policy of local steps, local steps with exchanges between them. Owned by one thread;
/// the client and the model outlive it.
class TrainingLoop {
 public:
  /// Requires checkFit(model, train).
  TrainingLoop(Client& client, Model& model, const Dataset& train, const LoopOptions& options);

  /// Joins the run; initializes the model if this trainer is the initializer. An error (invalidArgument) if
  /// there are more trainers than samples.
  Result<JoinInfo> join();
  /// This trainer's membership; after join() with the assigned rank.
  const Membership& membership() const { return options_.membership; }

  /// Trains to the end, or until shouldStop(), called between steps, returns true. Call once. Errors name the
  /// step. No call is in flight when it returns. Does not leave the run: the caller does, after its last
  /// pull.
  Result<TrainingSummary> run(const std::vector<LoopObserver*>& observers,
                              const std::function<bool()>& shouldStop);

 private:
  /// Input of a step other than the parameters.
  struct Input {
    StepReport report;
    AssignedSamples assignment;
    Batch batch;
    std::shared_ptr<RowBatch> rows;         ///< of `batch`; null: the model has no tables
    std::optional<Pending<PullInfo>> pull;  ///< in flight: parameters and rows
  };

  Status checkLocalSteps(const JoinInfo& info) const;
  Status checkAveraging(const JoinInfo& info) const;
  /// This trainer's newest parameters, in host memory.
  std::span<const float> newestParameters();
  /// Runs the steps. True if shouldStop() ended them.
  Result<bool> runSteps(const std::vector<LoopObserver*>& observers, const std::function<bool()>& shouldStop);
  /// Prepares input_ for `step`. False if there is no such step.
  Result<bool> takeStep(uint64_t step);
  /// Fills the batch with the samples taken last.
  Status fillBatch(Input& input);
  /// Fills the batch and starts a pull of its rows and of the parameters, into `destination`.
  Status beginPull(Input& input, std::span<float> destination);
  /// One step without the others' gradients: pull, compute, push. Errors of a step name it.
  Status take(std::monostate);
  /// A step under a policy of local steps.
  Status take(LocalStepRunner& local);
  /// A step under allreduce.
  Status take(AveragedSteps& averaged);
  /// Waits for the parameters and rows of the step and, with prefetch, starts the pull for the next one.
  Status takeParameters();
  Status prefetch();
  /// Computes the gradient of the step and pushes it. Fills the seconds, loss and staleness of the report.
  /// Errors name the step.
  Status computeAndPush();
  /// Pulls the rows of the batch, whose lookups are set.
  Status pullRows();
  Result<double> beginPush();
  /// Scales final elements of the gradient by the number of samples, where the policy does not do so.
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
  Input next_;                  ///< prefetched if its pull is set: into model_.spareParameters()
  std::vector<Version> basis_;  ///< of model_.parameters() and the rows of input_
  Tally tally_;
  PushesInFlight pushes_;
  std::variant<std::monostate, LocalStepRunner, AveragedSteps> steps_;  ///< as the policy has them taken
  uint64_t averagedPushes_ = 0;                                         ///< started under allreduce
};

}  // namespace psd
