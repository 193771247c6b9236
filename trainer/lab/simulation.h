#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/api/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/lab/step_times.h"
#include "trainer/lab/turns.h"
#include "trainer/lab/virtual_paces.h"
#include "trainer/loop/loop_options.h"
#include "trainer/loop/tally.h"
#include "trainer/model/model.h"

namespace psd {

/// Options of a simulation. A value type.
struct SimulationOptions {
  ClientOptions client;  ///< for each virtual trainer and the observer
  uint32_t trainers = 1;
  uint32_t batchSize = 32;
  uint64_t seed = 1;               ///< of the sample order
  std::optional<uint64_t> steps;   ///< limit, over all trainers; with `time`, the first one reached counts
  std::optional<double> time;      ///< limit, in virtual time
  uint64_t scoreEvery = 0;         ///< steps over all trainers; 0: the model is scored only at the end
  uint32_t byzantine = 0;          ///< number of trainers, the last ranks, that push noise
  double byzantineDeviation = 20;  ///< standard deviation of the noise
};

/// A point of a simulation at which the only calls in flight are those that wait for other trainers.
struct Moment {
  uint64_t steps = 0;  ///< over all trainers: pushes started, or local steps taken
  double time = 0;     ///< virtual
};

/// The result of a simulation. A value type.
struct SimulationReport {
  JoinInfo joined;  ///< of the first trainer
  Moment end;
  std::vector<TrainingSummary> trainers;  ///< by rank; staleness of answered pushes
  uint64_t bytesPulled = 0, bytesPushed = 0;
  bool interrupted = false;  ///< ended by shouldStop()
  std::string diverged;      ///< why the parameters are no longer finite; empty: they are
};

/// Virtual trainers in one process, each with its own session and rank at a real daemon, that share a model
/// and a data set. A schedule decides in virtual time which trainer's step completes next. At most one call
/// is in flight at a time, except calls that wait for another trainer because of a round or a staleness
/// bound. So the daemon receives the same calls in the same order in every run, and the parameters are
/// bit-identical, unless the daemon's behavior depends on the clock.
///
/// Owned by one thread, the director. It takes turns with the trainers' threads, each of which has a training
/// loop and a client.
class Simulation {
 public:
  using Connect = std::function<Result<std::unique_ptr<Client>>(const ClientOptions&)>;
  /// Scores the daemon's model through an observer.
  using Scorer = std::function<Status(Client& observer, const Moment& moment)>;

  /// `model`, `data` and everything that `connect` uses outlive it. Requires checkFit(model, data) and at
  /// least one sample per trainer.
  Simulation(const SimulationOptions& options, StepTimes schedule, Model& model, const Dataset& data,
             Connect connect);
  ~Simulation();

  /// Called once. `scorer` is called every `scoreEvery` steps and at the end, when all trainers sleep or
  /// wait.
  Result<SimulationReport> run(const Scorer& scorer, const std::function<bool()>& shouldStop);

 private:
  struct Trainer;

  /// The body of a trainer's thread, from its first turn to its last.
  Result<TrainingSummary> train(Trainer& trainer);
  Status begin();
  /// Takes steps until the end of the run, in virtual time.
  Status takeSteps(const Scorer& scorer, const std::function<bool()>& shouldStop);
  bool ends(double next, const std::function<bool()>& shouldStop);
  Status score(const Scorer& scorer);
  /// Runs the trainer until it sleeps, has ended, or waits for other trainers.
  Status runUntilIdle(Rank rank);
  /// Runs all trainers whose calls no longer wait for others.
  Status settle();
  Result<std::vector<Rank>> waiters();
  /// Has every trainer leave, and joins the threads.
  void finish();
  /// The first error of a trainer that has ended.
  Status firstError() const;
  Error noProgressError() const;

  const SimulationOptions options_;
  StepTimes schedule_;
  Model& model_;
  const Dataset& data_;
  const Connect connect_;
  Turns turns_;
  VirtualPaces paces_;                              // used by the thread that has the turn
  std::vector<std::unique_ptr<Trainer>> trainers_;  // by rank
  std::unique_ptr<Client> observer_;
  SimulationReport report_;
  uint64_t scored_ = 0;  // steps at the last score
};

}  // namespace psd
