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

/// What a trainer that asks for samples gets: a range, or none, now or for good.
struct Samples {
  std::optional<SampleRange> range;
  bool finished = false;
};

/// Assigns samples to the trainers that ask for them, by the plan that is saved with the parameters. Who
/// waits for samples is not counted on meanwhile: it makes no step until others are done.
///
/// Owned by the control loop's thread, on which every method is called.
class SampleAssigner final : private kj::TaskSet::ErrorHandler {
 public:
  /// `hosting` outlives the assigner.
  explicit SampleAssigner(Hosting& hosting) : hosting_(hosting), tasks_(*this) {}

  /// Whether there is a plan that was saved: what was dealt by it waits for those who have it.
  /// `isWholeRun`: who comes when it is finished gets nothing, rather than a plan of its own.
  bool recall(bool isWholeRun);
  /// Nobody waits any longer for trainers that were in when the daemon before this one died.
  void giveUpPriorRunTrainers();
  /// Who comes from now on begins a plan of its own, if this one is finished.
  void closeFinished();

  /// A trainer joins with samples from before: goes on with them, or drops what it pushes of them.
  void join(SessionId session, ProcessId process, const Candidate& candidate,
            const std::vector<HeldSamples>& held);
  /// A trainer that was lost is back: goes on with the samples it has, unless they went to others already.
  void rejoin(SessionId session, ProcessId process, const Candidate& candidate);
  /// A trainer is gone: what was dealt to it goes to others once its last pushes are answered.
  void leave(SessionId session);
  /// See Trainer.takeSamples in the schema.
  kj::Promise<Result<Samples>> take(SessionId session, SamplesRequest request);
  /// The gradient of a step is answered: applied, to some shards at least, or dropped.
  void stepOver(ProcessId process, Step step, bool applied);
  /// Nobody waits for samples from now on, or may do so again: where there is none now, that is the answer.
  void hurry(bool on);
  /// Answers all who wait, and whoever asks from now on.
  void endWaits(const Error& reason);

  /// What a trainer's batch has nominally; 0 where it chooses the number itself.
  uint32_t nominalOf(SessionId session) const { return batchSizes_.nominalOf(session); }
  /// Nothing where there is no plan.
  std::optional<SamplesStatus> status() const;

 private:
  struct Trainer {
    ProcessId id;  // the trainer as the plan knows it, over its sessions
    TrainerProcess process;
    bool wasInBefore = false;               // under the daemon before, or lost since
    bool takes = false;                     // has asked for samples
    std::optional<SamplesRequest> request;  // while the trainer waits for samples
    kj::Maybe<kj::Own<kj::PromiseFulfiller<Result<Samples>>>> waiter;
  };

  /// What take() gives, as soon as there is something.
  kj::Promise<Result<Samples>> find(SessionId session, SamplesRequest request);
  Status agree(SessionId session, const SamplesRequest& request);
  /// How many samples a trainer is to get, if there are as many.
  Result<uint32_t> countFor(SessionId session, const SamplesRequest& request);
  /// What there is for a trainer now; nothing where it would have to wait. `request.count` is what it is to
  /// get.
  std::optional<Samples> samplesFor(const Trainer& trainer, const SamplesRequest& request);
  /// Answers the trainers that wait for samples, as far as there are samples.
  void deal();
  void answer(SessionId session, Trainer& trainer, Result<Samples> answer);
  GuardedSamples& plan() const { return hosting_.samplePlan(); }
  void taskFailed(kj::Exception&& exception) override;

  Hosting& hosting_;
  BatchSizes batchSizes_;
  std::map<SessionId, Trainer> trainers_;
  bool hurried_ = false;
  std::optional<Error> ended_;  // why nothing is assigned any more
  kj::TaskSet tasks_;           // what goes back when pushes have landed
};

}  // namespace psd
