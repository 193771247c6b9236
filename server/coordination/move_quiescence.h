#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"
#include "common/types/daemon_addresses.h"
#include "server/coordination/hosting.h"
#include "server/serving/serving_state.h"

namespace psd {

/// Announces a move of the model to other daemons. A value type.
struct MoveNotice {
  uint64_t move = 0;     ///< a random number that identifies the move; 0: none
  uint32_t daemons = 0;  ///< number of target daemons
};

/// Quiesces the trainers while the model moves to other daemons: a quiesced trainer makes no calls, and no
/// round waits for it, until the answer says where it continues.
///
/// Owned by the control loop's thread, on which every method is called.
class MoveQuiescence final {
 public:
  /// The answer to a trainer: the daemons that serve the model now; empty: it continues here.
  using Answer = Result<DaemonAddresses>;
  using Trainers = std::vector<TrainerRef>;

  /// `serving` and `hosting` outlive it. `trainers` returns the joined trainers.
  MoveQuiescence(ServingState& serving, Hosting& hosting, std::function<Trainers()> trainers)
      : serving_(serving), hosting_(hosting), trainers_(std::move(trainers)) {}

  /// Announces a move to the trainers.
  void begin(const MoveNotice& notice);
  /// Resolves when there is a move with a number other than `known`.
  kj::Promise<MoveNotice> whenAnnounced(uint64_t known);
  /// Quiesces a trainer. `cannot`: see Trainer.quiesce in the schema. Dropping the promise takes it back.
  kj::Promise<Answer> quiesce(const TrainerRef& trainer, uint64_t move, const std::string& cannot);
  /// Resolves when all joined trainers are quiesced; no trainer joins from then on. An Error: impossible.
  kj::Promise<Status> whenAllQuiesced();
  /// A trainer has reconnected or departed: it is no longer quiesced.
  void resumeTrainer(SessionId session);
  /// Re-evaluates after a change of the joined trainers.
  void look();
  /// The move is over; see Answer. Trainers stay quiesced while it is unknown whether the model has moved.
  void end(const DaemonAddresses& movedTo);

  bool underWay() const { return notice_.move != 0; }
  /// The ranks that are not quiesced, human-readable: "0, 3".
  std::string missing() const;

 private:
  struct Quiesced {
    TrainerRef trainer;
    uint64_t number = 0;  // of the call
    kj::Own<kj::PromiseFulfiller<Answer>> fulfiller;
  };
  void dropped(SessionId session, uint64_t number);
  void giveUp(const Error& why);

  ServingState& serving_;
  Hosting& hosting_;
  const std::function<Trainers()> trainers_;
  MoveNotice notice_;
  std::map<SessionId, Quiesced> quiescedTrainers_;
  uint64_t calls_ = 0;
  std::optional<Error> impossible_;
  std::vector<std::pair<uint64_t, kj::Own<kj::PromiseFulfiller<MoveNotice>>>> asking_;
  kj::Maybe<kj::Own<kj::PromiseFulfiller<Status>>> waiter_;
};

}  // namespace psd
