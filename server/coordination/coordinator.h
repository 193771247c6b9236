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
#include "server/coordination/departed_ranks.h"
#include "server/coordination/event_log.h"
#include "server/coordination/hosting.h"
#include "server/coordination/initialization_gate.h"
#include "server/coordination/move_quiescence.h"
#include "server/coordination/report_book.h"
#include "server/coordination/sample_assigner.h"
#include "server/coordination/trainer_processes.h"
#include "server/membership/leases.h"
#include "server/membership/roster.h"
#include "server/membership/session_fence.h"
#include "server/metrics/counters.h"
#include "server/serving/serving_state.h"
#include "server/status/daemon_status.h"

namespace psd {

struct LogFields;

/// Settings of a run. A value type.
struct RunTerms {
  uint32_t worldSize = 0;     ///< maximum number of trainers; 0: given by the first one
  uint32_t worldSizeMin = 0;  ///< ranks that make the world complete; 0: all
  uint32_t ranksMax = 0;      ///< limit of any world size: every rank that ever joined is remembered
  std::chrono::milliseconds lease{0};
  std::chrono::milliseconds grace{0};
  bool exitWhenDone = false;  ///< the run ends once all trainers have joined and left
  bool keepsRanks = false;    ///< departed trainers are saved for the next daemon
};

/// State left by the previous daemon. A value type.
struct PriorRun {
  bool hasValues = false;            ///< the hosted model is initialized at the start
  bool continuesRun = false;         ///< the values were saved by another daemon
  std::set<Rank> ranks;              ///< ranks whose pushes are in the parameters
  std::optional<Departed> departed;  ///< trainers that have departed
};

/// The result of a join. A value type.
struct SessionGrant {
  TrainerRef trainer;
  ProcessId process;
  ModelInitialization::Role role = ModelInitialization::Role::wait;
  std::shared_ptr<SessionCounters> counters;
  std::shared_ptr<const SessionFence> fence;
  uint32_t attachment = 0;  ///< number of this join
  uint32_t worldSize = 0;
  uint64_t daemonId = 0;
  uint64_t primaryTerm = 0;   ///< the daemon's term as primary; 0: no replica set
  bool continuesRun = false;  ///< PriorRun::continuesRun
  bool resumed = false;       ///< an existing session is resumed
  bool further = false;       ///< an additional connection, beside the one that joined
  std::string codec;          ///< agreed for pushes, with its options
  std::string pullCodec;      ///< agreed for pulls, with its options
};

/// Progress of a run's trainers. A value type.
struct RunProgress {
  uint32_t trainers = 0;  ///< number of joined trainers
  bool over = false;      ///< with exitWhenDone: all have departed
};

/// Codecs that trainers have requested explicitly, with all options. A value type.
struct RequestedCodecs {
  std::set<std::string> push, pull;
  bool operator==(const RequestedCodecs&) const = default;
};

/// A joined trainer's request to attach one more connection. A value type.
struct AttachRequest {
  Rank rank;
  uint64_t incarnation = 0;
  uint32_t attachment = 0;  ///< SessionGrant::attachment of its join
  std::string owner = {};   ///< owner and asker: see Candidate
  std::string asker = {};
};

/// Coordinates the trainers of a run: membership, leases, model initialization, sample assignment, and the
/// end of the run. It holds no parameters; it reports its decisions to a Hosting.
///
/// Owned by the control loop's thread, on which every method is called.
class Coordinator final {
 public:
  /// `serving`, `hosting` and `metrics` outlive it.
  Coordinator(const RunTerms& terms, ServingState& serving, Hosting& hosting, DaemonMetrics& metrics);

  /// Resumes from the state that the previous daemon saved; with exitWhenDone, requests the end if all
  /// trainers have departed. Call once, before any trainer joins. False if `prior.departed` belongs to
  /// another run and must be discarded.
  bool begin(const PriorRun& prior);
  /// A join that names the move by which the model arrived here first waits for `commit(move)`. Call before
  /// any trainer joins.
  void onArrival(std::function<kj::Promise<void>(uint64_t move)> commit) {
    commitArrival_ = std::move(commit);
  }
  /// Whether this daemon serves. Changed by the moves, the replica set and the daemon itself.
  ServingState& serving() { return serving_; }
  uint64_t daemonId() const { return daemonId_; }
  /// The trainers that have departed.
  Departed departed() const { return {roster_.worldSize(), roster_.departed()}; }
  /// Applies other settings. World size and lease stay.
  void follow(const RunTerms& terms) {
    terms_ = terms;
    roster_.configure(terms.worldSize, terms.worldSizeMin);
  }

  /// `held`: samples assigned to the trainer, perhaps by a previous daemon, without an answer to their
  /// gradients.
  kj::Promise<Result<SessionGrant>> join(Candidate candidate, std::vector<HeldSamples> held, ModelSpec model);
  Result<SessionGrant> attach(const AttachRequest& request);
  /// The trainer's role; parked until it is the initializer or the model is initialized.
  kj::Promise<Result<ModelInitialization::Role>> awaitModel(SessionId session);
  /// The trainer has initialized the model, with the values that it had at `step` at a previous daemon; 0:
  /// fresh ones.
  kj::Promise<Status> initialized(SessionId session, Step step);
  /// The trainer has replaced the model's values and optimizer state by those after `step`.
  void restored(SessionId session, Step step);
  /// The trainer leaves; resolves once that is saved for the next daemon.
  kj::Promise<void> leave(SessionId session);
  /// Values that the trainer reports of its training; `values`: from validateReport().
  Status report(SessionId session, uint64_t step, std::span<const NamedValue> values);
  /// Ends the session of the rank's trainer, which counts as lost; its process may not join again. Returns a
  /// description of the trainer. `by`: the operator's name for logs and events.
  Result<std::string> remove(Rank rank, const std::string& by);
  /// The trainer's connection is gone; the trainer is lost unless it returns within the grace.
  void disconnected(SessionId session, uint32_t attachment);
  /// Ends the sessions of trainers whose lease or grace has expired. Returns the time until the next call.
  /// `now`: see Leases::advance().
  std::chrono::milliseconds expireLeases(std::chrono::milliseconds now);

  /// Starts the daemon's shutdown, see DaemonEnd::request(), and answers parked calls. `by`: the operator who
  /// requested it; empty: none.
  void requestStop(std::string reason, EndOf what = EndOf::run, const std::string& by = {});
  /// The daemon exits: ends the sessions of disconnected trainers without waiting for them.
  void endDisconnected();
  /// Call before the parameters are saved for the last time. Returns whether the run is over, so that the
  /// next daemon starts a new one.
  bool close();
  DaemonEnd& end() { return end_; }
  /// Resolves once the current set of departed trainers is saved, or saving has failed (logged).
  kj::Promise<void> whenDepartedRanksSaved() { return finished_.whenKept(); }

  /// The model is about to move to other daemons: quiesces the trainers.
  void startMove(const MoveNotice& notice);
  /// The move is over; `movedTo` empty: it was aborted and trainers resume here.
  void endMove(const DaemonAddresses& movedTo);
  kj::Promise<MoveQuiescence::Answer> quiesce(SessionId session, uint64_t move, const std::string& cannot);
  MoveQuiescence& pause() { return pause_; }
  /// The trainers' progress, for a bridge.
  RunProgress progress() const;
  /// The joined ranks.
  std::set<Rank> ranks() const;
  /// The previous daemon's ranks that have not returned.
  std::set<Rank> awaited() const { return roster_.awaited(); }

  /// Logs an operator's request and adds it to the events.
  void logOperatorRequest(const std::string& what, const std::string& by);

  SampleAssigner& samples() { return samples_; }
  EventLog& events() { return events_; }
  const ReportBook& reports() const { return reports_; }
  uint32_t worldSize() const { return roster_.worldSize(); }
  /// Number of open sessions, including a bridge.
  size_t present() const { return roster_.present(); }
  /// The push codec of each joined trainer.
  std::vector<std::pair<Rank, std::string>> pushCodecs() const;
  /// The codecs that joined trainers have requested, each once.
  RequestedCodecs askedCodecs() const {
    RequestedCodecs asked;
    for (const auto& [id, session] : sessions_) {
      if (session.candidate.ownCodec) asked.push.insert(session.candidate.codec);
      if (session.candidate.ownPullCodec) asked.pull.insert(session.candidate.pullCodec);
    }
    return asked;
  }
  /// Fills in state, trainers and samples. The daemon adds the rest.
  void fillStatus(DaemonStatus& status) const;

 private:
  struct Session {
    Candidate candidate;
    TrainerProcesses::Process process;
    std::shared_ptr<SessionFence> fence = std::make_shared<SessionFence>();
    uint64_t heardMs = 0;  // counters->lastSeenMs as of the last check
  };

  /// Logs a line and adds it to the events, of the kind `fields.event`.
  void note(spdlog::level::level_enum level, const LogFields& fields, const std::string& line);
  /// Logs a rejected join and adds it to the events.
  void noteRefused(const Candidate& candidate, const Error& why);
  /// Logs a rejected attempt to attach to another caller's session and adds it to the events. Returns the
  /// error for that caller.
  Error rejectForeignAttach(const AttachRequest& request);
  Result<SessionGrant> admit(Candidate candidate, const std::vector<HeldSamples>& held);
  std::vector<TrainerRef> trainersIn() const;
  /// The grant, once the departed trainers are saved. A trainer that drops the promise has disconnected.
  kj::Promise<Result<SessionGrant>> afterDepartedSaved(SessionGrant grant);
  /// Starts a session for a candidate whose rank is free.
  Result<SessionGrant> enter(const Candidate& candidate, const std::vector<HeldSamples>& held);
  /// Resumes a trainer's session over its new connection.
  SessionGrant resume(SessionId session, const Candidate& candidate);
  SessionGrant describe(SessionId session, ModelInitialization::Role role) const;
  /// Logs the initialization, with values that the trainer had at `step` at an earlier daemon (0: fresh).
  void logInitialized(const Candidate& trainer, Step step);
  /// Drops the model if no trainer is joined and it was never initialized.
  void dropUninitialized();
  /// Ends a session like forget(), and what is then unused: a model without values, a finished sample plan,
  /// the run. `why` completes "rank 3 … is lost after 5 steps: "; `by`: the operator who requested it, if
  /// any.
  void depart(SessionId session, Departure how, const std::string& why, const std::string& by = {});
  /// The operator who removed the trainer; null: not removed.
  const std::string* removerOf(const Candidate& candidate) const;
  /// Ends a session and frees its rank, without the rest of depart(). `why`: see depart().
  void forget(SessionId session, Departure how, const std::string& why, const std::string& by = {});
  /// Saves the departed trainers if they changed, and requests the end if those are all.
  void saveDepartedRanks();
  /// With exitWhenDone, requests the end if all trainers have departed.
  void endIfDone();
  /// Stops waiting for trainers that were joined when the previous daemon died.
  void dropPriorRunTrainers();
  /// Frees a rank when all are taken: ends the session of one disconnected trainer.
  void endOneDisconnected();
  void endExpired();

  RunTerms terms_;
  ServingState& serving_;
  Hosting& hosting_;
  DaemonMetrics& metrics_;
  Roster roster_;
  Leases leases_;
  InitializationGate arrival_;
  SampleAssigner samples_;
  MoveQuiescence pause_;
  DepartedRanks finished_;
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
  std::function<kj::Promise<void>(uint64_t)> commitArrival_;
  bool continuesRun_ = false;  // PriorRun::continuesRun
  DaemonEnd end_;
  kj::PromiseFulfillerPair<void> ranksPair_ = kj::newPromiseAndFulfiller<void>();
  kj::ForkedPromise<void> ranksGivenUp_;  // the previous daemon's trainers are no longer awaited
};

}  // namespace psd
