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

/// Who holds the parameters, as far as a Coordinator needs it: plain values go both ways, and no store,
/// policy or device shows. Owned by the control loop's thread, on which every method is called; outlives the
/// Coordinator.
class Hosting {
 public:
  virtual ~Hosting() = default;

  // --- The model -----------------------------------------------------------------------------------------

  /// Makes the model of a trainer that is the first one; else checks that its model is the one that is
  /// hosted. Ends without either where something changed meanwhile: hosts() tells, and it may be asked again.
  virtual kj::Promise<Status> provide(ModelSpec model) = 0;
  virtual bool hosts(const ModelSpec& model) const = 0;
  virtual bool hasModel() const = 0;
  /// Nobody is in: forgets a model to which nobody brought values. False where it stays all the same.
  virtual bool dropUnclaimed() = 0;
  /// A trainer has brought all values. Resolves when trainers may go.
  virtual kj::Promise<void> keepValues() = 0;

  // --- Trainers ------------------------------------------------------------------------------------------

  /// Whether a process may train here, among so many trainers. ErrorCode::rankTaken where the parameters show
  /// that another process has taken its rank since; ErrorCode::invalidArgument where no update could be made.
  virtual Status mayTrain(const TrainerProcess& process, uint32_t worldSize) const = 0;
  /// A process is in for the first time: what it pushes is known by `id`, and what it does goes to
  /// `counters`.
  virtual void processBegan(ProcessId id, const TrainerProcess& process,
                            std::shared_ptr<SessionCounters> counters) = 0;
  /// A process does not come back.
  virtual void processEnded(ProcessId id) = 0;
  /// What the process pushes from now on is this session's.
  virtual void sessionBegan(ProcessId id, const TrainerRef& trainer) = 0;
  /// The trainer counts as gone: what came of unfinished gradients is let go of.
  virtual void sessionEnded(ProcessId id) = 0;
  /// Updates count on a trainer's gradients, and no longer do. Both may come again without effect.
  virtual void countIn(const TrainerRef& trainer) = 0;
  virtual void countOut(SessionId session) = 0;
  /// Resolves when nothing that the process has pushed is being applied.
  virtual kj::Promise<void> whenLanded(ProcessId id) = 0;
  /// The samples behind a step went to others: if its gradient comes, it is dropped.
  virtual void drop(ProcessId id, Step step) = 0;

  // --- What outlives the daemon --------------------------------------------------------------------------

  /// The plan by which samples are assigned, which is saved with the parameters.
  virtual GuardedSamples& samplePlan() = 0;
  /// Writes down samples that were assigned, before any push of their gradient.
  virtual void assigned(const PlanTerms& plan, const SampleDeal& deal) = 0;
  /// Resolves when what was assigned until now may be told: where other daemons serve the model too, which do
  /// not know of samples, a daemon after this one must know whose they are.
  virtual kj::Promise<void> whenAssigned() = 0;
  /// Keeps for a daemon after this one which trainers have come and gone.
  virtual kj::Promise<Status> keepFinishedRanks(Departed departed) = 0;
};

}  // namespace psd
