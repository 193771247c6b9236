#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/client.h"
#include "trainer/dataset/dataset.h"
#include "trainer/loop/loop_options.h"
#include "trainer/loop/tally.h"
#include "trainer/model/model.h"
#include "trainer/simulate/step_times.h"
#include "trainer/simulate/turns.h"
#include "trainer/simulate/virtual_paces.h"

namespace psd {

/// What is simulated. A value type.
struct SimulationOptions {
  ClientOptions client;  ///< of each virtual trainer, and of who looks on
  uint32_t trainers = 1;
  uint32_t batchSize = 32;
  uint64_t seed = 1;              ///< of the order of the samples
  std::optional<uint64_t> steps;  ///< of all trainers together; with `time`, whichever is first
  std::optional<double> time;     ///< in virtual time
  uint64_t scoreEvery = 0;        ///< steps of all trainers together; 0: the model is scored at the end alone
  uint32_t byzantine = 0;         ///< so many trainers, the last ranks, push noise
  double byzantineDeviation = 20;  ///< of that noise
};

/// Where a simulation is, at a moment when no call is under way but those that wait for others.
struct Moment {
  uint64_t steps = 0;  ///< that the trainers have begun to push, or taken by themselves
  double time = 0;     ///< virtual
};

/// What came of a simulation. A value type.
struct SimulationReport {
  JoinInfo joined;  ///< what the first trainer was told
  Moment end;
  std::vector<TrainingSummary> trainers;  ///< by rank; staleness of what was answered
  uint64_t bytesPulled = 0, bytesPushed = 0;
  bool interrupted = false;  ///< shouldStop() ended it
  std::string diverged;      ///< why the values are not finite any more; empty: they are
};

/// Virtual trainers in one process, each with a session and a rank of its own at a real daemon, that share a
/// model and a data set. A schedule says in virtual time whose step is done next; no two calls are under way
/// at a time but such that wait for another trainer, as rounds and bounds make them. So the daemon gets the
/// same calls in the same order in every run, and the parameters have the same bits, unless something in the
/// daemon goes by the clock.
///
/// Owned by one thread. The trainers' threads, each with its training loop and client, run by turns with it.
class Simulation {
 public:
  using Connect = std::function<Result<std::unique_ptr<Client>>(const ClientOptions&)>;
  /// Looks at the daemon's model by a client that observes.
  using Scorer = std::function<Status(Client& observer, const Moment& moment)>;

  /// `model`, `data` and what `connect` needs outlive it. checkFit(model, data); there are as many samples as
  /// trainers.
  Simulation(const SimulationOptions& options, StepTimes schedule, Model& model, const Dataset& data,
             Connect connect);
  ~Simulation();

  /// Once. `scorer` is called every `scoreEvery` steps and at the end, once nothing moves any more.
  Result<SimulationReport> run(const Scorer& scorer, const std::function<bool()>& shouldStop);

 private:
  struct Trainer;

  /// What the thread of a trainer does, from its first turn to its last.
  Result<TrainingSummary> train(Trainer& trainer);
  Status begin();
  /// Takes steps until the end of the run, in virtual time.
  Status takeSteps(const Scorer& scorer, const std::function<bool()>& shouldStop);
  bool ends(double next, const std::function<bool()>& shouldStop);
  Status score(const Scorer& scorer);
  /// Lets the trainer run until it sleeps, has ended, or waits for others.
  Status drive(Rank rank);
  /// Lets all run whose calls wait for nobody any more.
  Status settle();
  Result<std::vector<Rank>> waiters();
  /// Lets every trainer say goodbye.
  void finish();
  /// The first error of a trainer that has ended.
  Status firstError() const;
  Error allWait() const;

  const SimulationOptions options_;
  StepTimes schedule_;
  Model& model_;
  const Dataset& data_;
  const Connect connect_;
  Turns turns_;
  VirtualPaces paces_;                              // of whoever has the turn
  std::vector<std::unique_ptr<Trainer>> trainers_;  // by rank
  std::unique_ptr<Client> observer_;
  SimulationReport report_;
  uint64_t scored_ = 0;  // steps at the newest score
};

}  // namespace psd
