#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>

#include "common/os/env.h"
#include "server/coordination/coordinator.h"
#include "server/hosting/daemon.h"
#include "server/hosting/parameter_host.h"
#include "server/loop/background.h"
#include "server/move/command_heartbeats.h"
#include "server/move/incoming_move.h"
#include "server/move/move_terms.h"
#include "server/move/outcome_poll.h"
#include "server/replica/image_stream.h"

namespace psd {

/// What the operator's command announces when it starts a move. A value type.
struct MoveStart {
  uint64_t lead = 0;   ///< the lead's process; 0: not given
  bool beats = false;  ///< it sends heartbeats
};

/// What is known once all trainers are quiesced. A value type.
struct QuiescedModel {
  MovedTrainers trainers;
  MoveTerms terms;
  std::optional<VersionsContinuation> versions = {};  ///< nullopt: none are published
};

/// The source side of a move: quiesces the trainers, sends this daemon's part, and commits. Before the
/// commit, any failure makes the trainers resume here; after it they never do: the daemon exits, and one that
/// is started over its folder redirects to the targets.
///
/// Owned by the control loop's thread, on which every method is called.
class OutgoingMove final {
 public:
  /// A range of elements of this daemon's layout.
  struct Range {
    uint64_t begin = 0, count = 0;
  };

  /// All references outlive it.
  OutgoingMove(Coordinator& coordinator, ParameterHost& host, Env& env, const DaemonConfig& config,
               Daemon& daemon, kj::Timer& timer)
      : coordinator_(coordinator),
        serving_(coordinator.serving()),
        host_(host),
        env_(env),
        config_(config),
        daemon_(daemon),
        timer_(timer),
        beats_(timer),
        poll_(daemon, timer) {}

  /// Reads from the folder whether the model has moved away. Blocks; call at the start.
  Status look();
  /// The cluster document says that the model has moved: records it in the folder too. Blocks.
  void adopt(RecordedMove move);
  /// Resolves when the model has moved away; with an empty record if the daemon exits before.
  kj::Promise<RecordedMove> whenMoved();
  /// The daemon exits: resolves all calls of whenMoved().
  void endWaits() { resolveWaiters({}); }
  /// Why no model can move here, and the remedy, if one has moved away.
  std::optional<Error> refusal() const;

  /// The requirements on the targets; an Error if the model cannot move.
  Result<MoveTerms> terms() const;
  /// See Admin.startMove in the schema.
  Status begin(uint64_t move, DaemonAddresses to, std::chrono::milliseconds most, MoveStart begun = {});
  /// A heartbeat of the operator's command.
  void onHeartbeat(uint64_t move);
  /// Resolves when all trainers are quiesced and the model no longer changes.
  kj::Promise<Result<QuiescedModel>> whenQuiesced(uint64_t move);
  /// Writes a published version, see VersionStore::giveTo(); also while no move is in progress.
  kj::Promise<Result<VersionStore::Given>> giveVersion(uint64_t after, std::shared_ptr<ImageStream> to) {
    return host_.giveVersionTo(std::move(to), after);
  }
  /// Writes a checkpoint of the shards that the range needs, and of all rows; resolves with its path.
  kj::Promise<Result<std::string>> give(uint64_t move, const Range& range, std::shared_ptr<ImageStream> to);
  /// The targets have everything: commits the move. The daemon exits.
  kj::Promise<Status> commit(uint64_t move);
  /// Aborts: trainers resume here. No effect if the move is committed, or about to be. If this daemon is not
  /// the lead, the move may still be committed; the lead is polled.
  void abandon(uint64_t move, const std::string& why);

 private:
  /// The result of writing the record that commits the move.
  struct Writing {
    OutgoingMoveState::Written written = OutgoingMoveState::Written::no;
    Status status;
  };
  Writing writeMark(const RecordedMove& move) const;
  /// writeMark() with an engine: the cluster document already commits the move, whatever the result here.
  kj::Promise<void> markFolder(const RecordedMove& move);
  static void logUnmarked(const Status& written);
  /// Writes the record of the move that is being committed.
  kj::Promise<Status> decide();
  Status decided(uint64_t move, const Writing& writing);
  /// Whether nothing changes until the move is over.
  Status checkStill(uint64_t move) const;
  /// Why no move can begin.
  Status mayBegin() const;
  MoveTerms ownTerms() const;
  /// Holds back updates, and freezes the versions. Resolves with why that failed.
  kj::Promise<Status> closeGates();
  void openGates();
  /// How the versions continue elsewhere, once they are frozen.
  VersionsContinuation continuation() const;
  void leave();
  /// The model has moved away: readers of versions learn it.
  void refuseVersions();
  void resolveWaiters(const RecordedMove& moved);
  /// Asks the move's lead for the outcome of a move that was aborted here.
  void askLead(uint64_t move, const DaemonAddresses& to);
  /// How an operator makes this daemon serve a model again, human-readable.
  std::string remedy() const;

  Coordinator& coordinator_;
  ServingState& serving_;
  ParameterHost& host_;
  Env& env_;
  const DaemonConfig& config_;
  Daemon& daemon_;
  kj::Timer& timer_;
  bool closed_ = false;                             // this object has closed the gates
  kj::ForkedPromise<void> versionsHeld_ = nullptr;  // see ParameterHost::holdVersions()
  kj::Promise<void> deadline_ = nullptr;
  CommandHeartbeats beats_;
  OutcomePoll poll_;
  std::vector<kj::Own<kj::PromiseFulfiller<RecordedMove>>> waiting_;  // calls of whenMoved()
  Background background_;
};

}  // namespace psd
