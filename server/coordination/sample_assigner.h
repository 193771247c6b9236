#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <kj/async.h>

#include "server/coordination/hosting.h"
#include "server/membership/batch_sizes.h"
#include "server/membership/sample_plan.h"
#include "server/status/daemon_status.h"

namespace psd {

/// The answer to a request for samples: a range, or none for now, or none any more (`finished`).
struct Samples {
  std::optional<SampleRange> range;
  bool finished = false;
};

/// Assigns samples to trainers on request, by the plan that is saved with the parameters. Rounds do not wait
/// for a trainer that waits for samples: it makes no step until others are done.
///
/// Owned by the control loop's thread, on which every method is called.
class SampleAssigner final : private kj::TaskSet::ErrorHandler {
 public:
  /// `hosting` outlives the assigner.
  explicit SampleAssigner(Hosting& hosting) : hosting_(hosting), tasks_(*this) {}

  /// Resumes a saved plan; returns whether there is one. Its open assignments wait for their trainers.
  /// `isWholeRun`: a trainer that joins after it is finished gets no samples, instead of a new plan.
  bool recall(bool isWholeRun);
  /// Stops waiting for trainers that were joined at the previous daemon.
  void dropPriorRunTrainers();
  /// If the plan is finished, the next trainer to ask starts a new one.
  void closeFinished();

  /// A trainer joins with samples from earlier: keeps them, or has the gradients of those reassigned dropped.
  void join(SessionId session, ProcessId process, const Candidate& candidate,
            const std::vector<HeldSamples>& held);
  /// A lost trainer has returned: keeps its samples, unless they were reassigned.
  void rejoin(SessionId session, ProcessId process, const Candidate& candidate);
  /// A trainer has departed: its samples are reassigned once its last pushes are answered.
  void leave(SessionId session);
  /// See Trainer.takeSamples in the schema.
  kj::Promise<Result<Samples>> take(SessionId session, SamplesRequest request);
  /// The gradient of a step is answered: applied, to some shards at least, or dropped.
  void stepOver(ProcessId process, Step step, bool applied);
  /// `on`: requests no longer wait for samples; without any, the answer is empty. Off: they may wait again.
  void hurry(bool on);
  /// Answers all waiting and all later requests with `reason`.
  void endWaits(const Error& reason);

  /// A trainer's nominal batch size; 0 if it chooses the size itself.
  uint32_t nominalOf(SessionId session) const { return batchSizes_.nominalOf(session); }
  /// Nothing if there is no plan.
  std::optional<SamplesStatus> status() const;

 private:
  struct Trainer {
    ProcessId id;  // identifies the trainer in the plan, across its sessions
    TrainerProcess process;
    bool wasInBefore = false;               // at the previous daemon, or lost since
    bool takes = false;                     // has requested samples
    std::optional<SamplesRequest> request;  // while the trainer waits for samples
    kj::Maybe<kj::Own<kj::PromiseFulfiller<Result<Samples>>>> waiter;
  };

  /// Resolves with the samples for take(), as soon as there are any.
  kj::Promise<Result<Samples>> find(SessionId session, SamplesRequest request);
  Status agree(SessionId session, const SamplesRequest& request);
  /// The number of samples for a trainer, if that many are available.
  Result<uint32_t> countFor(SessionId session, const SamplesRequest& request);
  /// Assigns at most `request.count` samples now; nothing if the trainer would have to wait.
  std::optional<Samples> samplesFor(const Trainer& trainer, const SamplesRequest& request);
  /// Answers waiting trainers, as far as samples are available.
  void assign();
  void answer(SessionId session, Trainer& trainer, Result<Samples> answer);
  GuardedSamples& plan() const { return hosting_.samplePlan(); }
  void taskFailed(kj::Exception&& exception) override;

  Hosting& hosting_;
  BatchSizes batchSizes_;
  std::map<SessionId, Trainer> trainers_;
  bool hurried_ = false;
  std::optional<Error> ended_;  // why no samples are assigned any more
  kj::TaskSet tasks_;           // return samples once pushes have landed
};

}  // namespace psd
