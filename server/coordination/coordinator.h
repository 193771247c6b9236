#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>
#include <spdlog/common.h>

#include "server/coordination/daemon_end.h"
#include "server/coordination/event_log.h"
#include "server/coordination/finished_ranks.h"
#include "server/coordination/hosting.h"
#include "server/coordination/model_arrival.h"
#include "server/coordination/move_pause.h"
#include "server/coordination/report_book.h"
#include "server/coordination/sample_assigner.h"
#include "server/coordination/trainer_processes.h"
#include "server/membership/leases.h"
#include "server/membership/roster.h"
#include "server/membership/session_epoch.h"
#include "server/metrics/counters.h"
#include "server/status/daemon_status.h"

namespace psd {

struct LogFields;

/// What a run goes by. A value type.
struct RunTerms {
  uint32_t worldSize = 0;     ///< trainers at most; 0: what the first one says
  uint32_t worldSizeMin = 0;  ///< ranks that make the world complete; 0: all
  uint32_t ranksMax = 0;      ///< of any world: each rank that ever was in is remembered
  std::chrono::milliseconds lease{0};
  std::chrono::milliseconds grace{0};
  bool exitWhenDone = false;  ///< the run ends once all trainers have joined and left
  bool keepsRanks = false;    ///< a daemon after this one is told which trainers have come and gone
};

/// What a daemon before this one left. A value type.
struct PriorRun {
  bool hasValues = false;            ///< the model that is hosted at the start has its values
  bool goesOn = false;               ///< as another daemon had saved them
  std::set<Rank> ranks;              ///< whose pushes are in the parameters
  std::optional<Departed> departed;  ///< the trainers that have come and gone
};

/// What a trainer gets when it joins. A value type.
struct SessionGrant {
  TrainerRef trainer;
  ProcessId process;
  ModelStart::Role role = ModelStart::Role::wait;
  std::shared_ptr<SessionCounters> counters;
  std::shared_ptr<const SessionEpoch> epoch;
  uint32_t attachment = 0;  ///< of this connection
  uint32_t worldSize = 0;
  uint64_t daemonId = 0;
  uint64_t primaryEpoch = 0;  ///< in which the daemon is the primary of its group; 0: it has none
  bool goesOn = false;        ///< PriorRun::goesOn
  bool resumed = false;       ///< the session of before goes on
  bool further = false;       ///< this is one more connection beside the one that joined
  std::string codec;          ///< agreed for pushes, with its options
  std::string pullCodec;      ///< agreed for pulls, with its options
};

/// How far the trainers of a run are. A value type.
struct RunProgress {
  uint32_t trainers = 0;  ///< that are in
  bool over = false;      ///< with exitWhenDone: all have come and gone
};

/// The codecs that trainers have asked for themselves, with all options. A value type.
struct AskedCodecs {
  std::set<std::string> push, pull;
  bool operator==(const AskedCodecs&) const = default;
};

/// How a trainer that has joined asks for one more connection. A value type.
struct AttachRequest {
  Rank rank;
  uint64_t incarnation = 0;
  uint32_t attachment = 0;  ///< SessionGrant::attachment of its join
  std::string owner = {};   ///< owner and asker: see Candidate
  std::string asker = {};
};

/// Decides who is in: trainers that join, come back, are lost or leave, their leases, who brings the first
/// values, and when the run is over. It holds no parameters; what its decisions mean for them, a Hosting is
/// told.
///
/// Owned by the control loop's thread, on which every method is called.
class Coordinator final {
 public:
  /// `hosting` and `metrics` outlive it.
  Coordinator(const RunTerms& terms, Hosting& hosting, DaemonMetrics& metrics);

  /// Goes on with what a daemon before this one left; with exitWhenDone it begins to end where all trainers
  /// have come and gone. Once, before any trainer. False where `prior.departed` is of another run, and to be
  /// forgotten.
  bool begin(const PriorRun& prior);
  /// Nobody is let in while `door` gives an Error, which is the answer. Before any trainer.
  void keepDoor(std::function<std::optional<Error>()> door) { door_ = std::move(door); }
  /// Why nobody is let in; nothing where the door is open.
  std::optional<Error> turnedAway() const { return door_ ? door_() : std::nullopt; }
  /// Before a trainer is let in that names the move by which the model came here, `moved(move)` is waited
  /// for.
  void afterMove(std::function<kj::Promise<void>(uint64_t move)> moved) { moved_ = std::move(moved); }
  /// Another daemon serves the run from now on: a trainer that hangs up goes on there, and is not lost; nor
  /// does the run end here.
  void handOver() { handedOver_ = true; }
  /// In which epoch the daemon serves.
  void setEpoch(uint64_t epoch) { epoch_ = epoch; }
  uint64_t daemonId() const { return daemonId_; }
  /// Which trainers have come and gone.
  Departed departed() const { return {roster_.worldSize(), roster_.departed()}; }
  /// Goes by other terms from now on. World size and lease stay.
  void follow(const RunTerms& terms) {
    terms_ = terms;
    roster_.configure(terms.worldSize, terms.worldSizeMin);
  }

  /// `held`: samples that the trainer was assigned, maybe by a daemon before, and not told what became of
  /// their gradients.
  kj::Promise<Result<SessionGrant>> join(Candidate candidate, std::vector<HeldSamples> held, ModelSpec model);
  Result<SessionGrant> attach(const AttachRequest& request);
  /// Whether the trainer is to bring the values; parked until that is known or the values are there.
  kj::Promise<Result<ModelStart::Role>> awaitModel(SessionId session);
  /// The trainer has brought the values, which are those that it had at that step at a daemon before; 0: as
  /// it began.
  kj::Promise<Status> initialized(SessionId session, Step step);
  /// The trainer said goodbye; resolves once a daemon after this one would know.
  kj::Promise<void> leave(SessionId session);
  /// What the trainer tells of its training; `values`: of checkReported().
  Status report(SessionId session, uint64_t step, std::span<const NamedValue> values);
  /// Ends the session of the rank's trainer, which counts as lost; its process may not join again. Returns a
  /// description of the trainer. `by`: the operator, as logs and events name it.
  Result<std::string> remove(Rank rank, const std::string& by);
  /// The trainer's connection is gone; so is the trainer, unless it comes back within the grace.
  void disconnected(SessionId session, uint32_t attachment);
  /// Ends the sessions of trainers whose lease or grace has run out. Gives how soon it is to be called again.
  /// `now`: see Leases::advance().
  std::chrono::milliseconds lookAtLeases(std::chrono::milliseconds now);

  /// Begins to end the daemon, see DaemonEnd::request(): answers what waits here. `by`: the operator who
  /// asks; empty: none does.
  void requestStop(std::string reason, EndOf what = EndOf::run, const std::string& by = {});
  /// The daemon ends: nobody is waited for to come back.
  void endDisconnected();
  /// The parameters are about to be saved for the last time. Whether the run is over, so that the next daemon
  /// begins one of its own.
  bool close();
  DaemonEnd& end() { return end_; }
  /// Resolves once who has come and gone is kept as of now, or cannot be, which the log says.
  kj::Promise<void> whenFinishedRanksKept() { return finished_.whenKept(); }

  /// The model is about to move to other daemons, and trainers step aside for it.
  void beginMove(const MoveNotice& notice);
  /// It has moved there; nowhere: trainers go on here.
  void endMove(const DaemonPlaces& movedTo);
  kj::Promise<MovePause::Answer> stepAside(SessionId session, uint64_t move, const std::string& cannot);
  MovePause& pause() { return pause_; }
  /// How far the trainers are, for a bridge.
  RunProgress progress() const;
  /// The ranks that are in.
  std::set<Rank> ranks() const;
  /// The ranks of trainers that a daemon before this one had, and that are not back.
  std::set<Rank> awaited() const { return roster_.awaited(); }

  /// Logs a request of an operator, and adds it to the events.
  void noteAsked(const std::string& what, const std::string& by);

  SampleAssigner& samples() { return samples_; }
  EventLog& events() { return events_; }
  const ReportBook& reports() const { return reports_; }
  uint32_t worldSize() const { return roster_.worldSize(); }
  /// Sessions that are open, a bridge included.
  size_t present() const { return roster_.present(); }
  /// The codec that each trainer which is in pushes with.
  std::vector<std::pair<Rank, std::string>> pushCodecs() const;
  /// What those that are in have asked for, each once.
  AskedCodecs askedCodecs() const {
    AskedCodecs asked;
    for (const auto& [id, session] : sessions_) {
      if (session.candidate.ownCodec) asked.push.insert(session.candidate.codec);
      if (session.candidate.ownPullCodec) asked.pull.insert(session.candidate.pullCodec);
    }
    return asked;
  }
  /// State, trainers, samples. The daemon adds the rest.
  void fillStatus(DaemonStatus& status) const;

 private:
  struct Session {
    Candidate candidate;
    TrainerProcesses::Process process;
    std::shared_ptr<SessionEpoch> epoch = std::make_shared<SessionEpoch>();
    uint64_t heardMs = 0;  // counters->lastSeenMs when it was last looked at
  };

  /// Logs a line and adds it to the events, of the kind `fields.event`.
  void note(spdlog::level::level_enum level, const LogFields& fields, const std::string& line);
  /// Logs a refused join, and adds it to the events.
  void noteRefused(const Candidate& candidate, const Error& why);
  /// Logs a refused attempt to attach a connection to the session of another caller, and adds it to the
  /// events. Returns the error for that caller.
  Error noteForeign(const AttachRequest& request);
  Result<SessionGrant> admit(Candidate candidate, const std::vector<HeldSamples>& held);
  std::vector<TrainerRef> trainersIn() const;
  /// The grant, once who has come and gone is kept. A trainer that does not wait for it has hung up.
  kj::Promise<Result<SessionGrant>> whenKeptFor(SessionGrant grant);
  /// Begins a session of a candidate whose rank is free.
  Result<SessionGrant> enter(const Candidate& candidate, const std::vector<HeldSamples>& held);
  /// Goes on with a trainer's session over its new connection.
  SessionGrant resume(SessionId session, const Candidate& candidate);
  SessionGrant describe(SessionId session, ModelStart::Role role) const;
  /// Tells of the first values, which the trainer had at that step of an earlier daemon's (0: as it began).
  void tellOfValues(const Candidate& trainer, Step step);
  /// Drops the model if nobody is in and it never got its values.
  void dropUnclaimed();
  /// Ends a session as forget() does, and what nobody needs then: a model without values, a finished plan of
  /// samples, the run. `why` completes "rank 3 … is lost after 5 steps: "; `by`: the operator who asked for
  /// that, if any.
  void depart(SessionId session, Departure how, const std::string& why, const std::string& by = {});
  /// Who removed the trainer; null: it was not removed.
  const std::string* removerOf(const Candidate& candidate) const;
  /// Ends a session and frees its rank, without what depart() does besides. `why`: see depart().
  void forget(SessionId session, Departure how, const std::string& why, const std::string& by = {});
  /// Keeps who has come and gone, if that changed, and begins to end if those are all.
  void keepFinishedRanks();
  /// With exitWhenDone begins to end where all have come and gone.
  void endIfDone();
  /// Nobody waits any longer for trainers that were in when a daemon before this one died.
  void giveUpPriorRunTrainers();
  /// Frees a rank when all are taken: ends the session of a trainer that is not connected.
  void endOneDisconnected();
  void endExpired();

  RunTerms terms_;
  Hosting& hosting_;
  DaemonMetrics& metrics_;
  Roster roster_;
  Leases leases_;
  ModelArrival arrival_;
  SampleAssigner samples_;
  MovePause pause_;
  FinishedRanks finished_;
  TrainerProcesses processes_;
  EventLog events_;
  ReportBook reports_;
  std::map<SessionId, Session> sessions_;
  struct Removed {
    Candidate trainer;
    std::string by;
  };
  std::deque<Removed> removed_;  // the newest
  const uint64_t daemonId_;
  std::function<std::optional<Error>()> door_;
  std::function<kj::Promise<void>(uint64_t)> moved_;
  uint64_t epoch_ = 0;
  bool handedOver_ = false;
  bool goesOn_ = false;  // PriorRun::goesOn
  DaemonEnd end_;
  kj::PromiseFulfillerPair<void> ranksPair_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> ranksGivenUp_;  // nobody waits any more for trainers of a daemon before
};

}  // namespace psd
