#pragma once

#include <cstdint>
#include <memory>

#include <kj/async.h>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "common/types/model_spec.h"
#include "server/membership/roster.h"
#include "server/membership/sample_plan.h"
#include "server/membership/trainer.h"
#include "server/metrics/counters.h"

namespace psd {

/// The holder of the parameters, as the Coordinator sees it: exchanges plain values and exposes no store,
/// policy or device. Owned by the control loop's thread, on which every method is called; outlives the
/// Coordinator.
class Hosting {
 public:
  virtual ~Hosting() = default;

  // --- The model -----------------------------------------------------------------------------------------

  /// Creates the first trainer's model; for later ones, checks that their model and optimizer are those that
  /// are hosted. If the state changed meanwhile it may do neither: check hosts() and call again. `optimizer`:
  /// the trainer's, as JSON; empty: the daemon's.
  virtual kj::Promise<Status> provideModel(ModelSpec model, std::string optimizer) = 0;
  virtual bool hosts(const ModelSpec& model) const = 0;
  virtual bool hasModel() const = 0;
  /// No trainer is joined: drops a model that was never initialized. False if the model stays.
  virtual bool dropUninitialized() = 0;
  /// A trainer has initialized the model. Resolves when trainers may start.
  virtual kj::Promise<void> saveValues() = 0;

  // --- Trainers ------------------------------------------------------------------------------------------

  /// Whether a process may train here with that world size. ErrorCode::rankTaken if the parameters show that
  /// another process has taken its rank since; ErrorCode::invalidArgument if no update would be possible.
  virtual Status mayTrain(const TrainerProcess& process, uint32_t worldSize) const = 0;
  /// A process joined for the first time: `id` identifies its pushes, `counters` counts its activity.
  virtual void processBegan(ProcessId id, const TrainerProcess& process,
                            std::shared_ptr<SessionCounters> counters) = 0;
  /// A process will not return.
  virtual void processEnded(ProcessId id) = 0;
  /// Pushes of the process belong to this session from now on.
  virtual void sessionBegan(ProcessId id, const TrainerRef& trainer) = 0;
  /// The trainer has departed: releases its unfinished gradients.
  virtual void sessionEnded(ProcessId id) = 0;
  /// Rounds wait, or no longer wait, for a trainer's gradients. Both are idempotent.
  virtual void includeInRounds(const TrainerRef& trainer) = 0;
  virtual void excludeFromRounds(SessionId session) = 0;
  /// Resolves when no push of the process is being applied.
  virtual kj::Promise<void> whenPushesDrained(ProcessId id) = 0;
  /// The samples of a step were assigned to other trainers: its gradient is dropped if it arrives.
  virtual void drop(ProcessId id, Step step) = 0;

  // --- What outlives the daemon --------------------------------------------------------------------------

  /// The plan that assigns samples; saved with the parameters.
  virtual GuardedSamples& samplePlan() = 0;
  /// Logs an assignment of samples, before any push of its gradient.
  virtual void assigned(const PlanTerms& plan, const SampleAssignment& assignment) = 0;
  /// Resolves when the assignments so far may be sent to trainers. If other daemons serve the model too,
  /// which do not know the samples, the assignments must first be durable for the next daemon.
  virtual kj::Promise<void> whenAssigned() = 0;
  /// Saves the departed trainers for the next daemon.
  virtual kj::Promise<Status> saveDepartedRanks(Departed departed) = 0;
};

}  // namespace psd
