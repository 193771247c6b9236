#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"
#include "common/types/daemon_places.h"
#include "server/coordination/hosting.h"

namespace psd {

/// That the model is about to move to other daemons. A value type.
struct MoveNotice {
  uint64_t move = 0;     ///< a random number that names the move; 0: there is none
  uint32_t daemons = 0;  ///< how many are to serve the model
};

/// How trainers step aside while the model moves to other daemons: each makes no call from then on, and is
/// not waited for, until it is told where it goes on.
///
/// Owned by the control loop's thread, on which every method is called.
class MovePause final {
 public:
  /// What a trainer is told: the daemons that serve the model now; none: it goes on here.
  using Answer = Result<DaemonPlaces>;
  using Trainers = std::vector<TrainerRef>;

  /// `hosting` outlives it. `trainers`: those that are in.
  MovePause(Hosting& hosting, std::function<Trainers()> trainers)
      : hosting_(hosting), trainers_(std::move(trainers)) {}

  /// A move is about to begin, of which trainers are told.
  void begin(const MoveNotice& notice);
  /// Resolves when there is a move other than the one with that number.
  kj::Promise<MoveNotice> whenAsked(uint64_t known);
  /// A trainer steps aside. `cannot`: see Trainer.stepAside in the schema. Dropped: it is not aside any more.
  kj::Promise<Answer> stepAside(const TrainerRef& trainer, uint64_t move, const std::string& cannot);
  /// Resolves when all trainers that are in are aside; nobody comes from then on. An Error: that cannot be.
  kj::Promise<Status> whenAllAside();
  /// A trainer is back over another connection, or has gone: it is not aside.
  void isBack(SessionId session);
  /// Who is in has changed.
  void look();
  /// Why a trainer is not let in now. `resumes`: it goes on with a session that it has.
  std::optional<Error> refusal(bool resumes) const;
  /// Whether the move counts is about to be decided: until it is, trainers are not told that they go on here.
  void decide(bool underWay) { deciding_ = underWay; }
  /// The move is over; see Answer.
  void end(const DaemonPlaces& movedTo);

  bool underWay() const { return notice_.move != 0; }
  /// All are aside: nothing changes until end().
  bool still() const { return still_; }
  /// The model is served elsewhere.
  bool moved() const { return moved_; }
  /// The ranks that are not aside, for people: "0, 3".
  std::string missing() const;

 private:
  struct Aside {
    TrainerRef trainer;
    uint64_t number = 0;  // of the call
    kj::Own<kj::PromiseFulfiller<Answer>> fulfiller;
  };
  void dropped(SessionId session, uint64_t number);
  void giveUp(const Error& why);

  Hosting& hosting_;
  const std::function<Trainers()> trainers_;
  MoveNotice notice_;
  std::map<SessionId, Aside> aside_;
  uint64_t calls_ = 0;
  bool still_ = false, moved_ = false, deciding_ = false;
  std::optional<Error> impossible_;
  std::vector<std::pair<uint64_t, kj::Own<kj::PromiseFulfiller<MoveNotice>>>> asking_;
  kj::Maybe<kj::Own<kj::PromiseFulfiller<Status>>> waiter_;
};

}  // namespace psd
