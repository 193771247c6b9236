#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>

#include "common/os/env.h"
#include "server/coordination/coordinator.h"
#include "server/hosting/daemon.h"
#include "server/hosting/parameter_host.h"
#include "server/loop/background.h"
#include "server/move/arriving_versions.h"
#include "server/move/command_heartbeats.h"
#include "server/move/move_mark.h"
#include "server/move/move_terms.h"
#include "server/move/outcome_poll.h"
#include "server/replica/image_stream.h"
#include "server/replica/memory_files.h"

namespace psd {

/// The trainers of the source daemons. A value type.
struct MovedTrainers {
  Departed departed;     ///< ranks that have departed
  std::set<Rank> ranks;  ///< ranks that are about to join here
};

/// The target side of a move: receives the sources' parts, builds this daemon's partition from them, and
/// commits it. Until the commit, joins are rejected. A partition that has been built is kept if the
/// operator's command dies, since the sources may consider the move committed: their lead is asked. It is
/// discarded if the lead or the command says that the move will never be committed, or if another move of
/// that lead replaces it.
///
/// Owned by the control loop's thread, on which every method is called.
class IncomingMove final {
 public:
  /// All references outlive it.
  IncomingMove(Coordinator& coordinator, ParameterHost& host, Env& env, const DaemonConfig& config,
               Daemon& daemon, kj::Timer& timer)
      : coordinator_(coordinator),
        serving_(coordinator.serving()),
        host_(host),
        env_(env),
        config_(config),
        daemon_(daemon),
        beats_(timer),
        poll_(daemon, timer),
        versions_(host) {}

  /// Checks whether the folder's state belongs to a move that is not known to be committed; if so, the state
  /// is not used until that is known. Blocks; call at the start.
  Status look();
  /// Starts a move from `parts` source daemons. See Admin.arrive in the schema.
  Status begin(uint64_t move, uint32_t parts, bool beats = false);
  /// A heartbeat of the operator's command.
  void onHeartbeat(uint64_t move);
  /// The addresses of the source's lead, if a committed move brought the model; else empty.
  std::vector<std::string> cameFrom() const;
  /// Checks whether the model is compatible with this daemon; install() requires it.
  Status check(uint64_t move, const MoveTerms& terms, const ModelSpec& whole);
  /// Receives a chunk of one source's part, and the end of that part.
  Status image(uint64_t move, uint32_t part, const ImagePart& piece);
  Status imageDone(uint64_t move, uint32_t part, const std::string& path);
  /// Receives a chunk of the file of a published version, and the end of that file; see
  /// ArrivingVersions.
  Status versionImage(uint64_t move, std::span<const std::byte> bytes);
  kj::Promise<Status> versionDone(uint64_t move, uint64_t oldest);
  /// Builds this daemon's partition and, with durability, saves it. Resolves with its number of rows.
  /// `versions`: how those of versionDone() continue; nullopt: none move along.
  kj::Promise<Result<uint64_t>> install(uint64_t move, MovedTrainers trainers,
                                        std::optional<VersionsContinuation> versions = {});
  /// Commits the move: trainers may join. No effect if it is committed already.
  kj::Promise<Status> commit(uint64_t move);
  /// The operator's command knows that the move will never be committed: discards it.
  kj::Promise<Status> giveUp(uint64_t move);
  /// The operator's command is gone: discards a move not yet in place; else asks the lead for the outcome.
  void abandon(uint64_t move);
  /// Bytes of received parts.
  uint64_t held() const;

 private:
  kj::Promise<Status> installModel(uint64_t move, ParameterHost::Arrived arrived);
  Result<uint64_t> placed();
  /// Removes a partition that failed to be put in place, also from disk; joins are rejected until then.
  kj::Promise<Result<uint64_t>> undo(Error why);
  /// Removes the partition that is in place.
  kj::Promise<Status> forget();
  kj::Promise<Status> removeModel();
  void dropReceived();
  /// Also its published versions.
  void dropReceived(uint64_t move);
  Status checkVersions(uint64_t move, const std::optional<VersionsContinuation>& versions) const;
  /// The versions that arrived survive a restart from now on.
  kj::Promise<Status> installVersions();
  /// Removes from the folder what the move has written.
  kj::Promise<Status> clean();
  /// Asks the lead of the model in place for the outcome of its move.
  void askLead();
  void open();
  Status checkRanks(const MovedTrainers& trainers) const;

  Coordinator& coordinator_;
  ServingState& serving_;
  ParameterHost& host_;
  Env& env_;
  const DaemonConfig& config_;
  Daemon& daemon_;
  CommandHeartbeats beats_;  // of the move being received
  OutcomePoll poll_;
  uint32_t worldSize_ = 0;  // of the trainers of that move
  std::shared_ptr<MemoryFiles> files_;
  std::weak_ptr<MemoryFiles> held_;        // files_, also while a partition is built from them
  std::vector<std::string> paths_;         // by part; empty: not received
  std::optional<MovedTrainers> trainers_;  // nothing: the coordinator has them from the folder
  ArrivingVersions versions_;
  std::optional<VersionsContinuation> continuation_;  // of versions_
  kj::Maybe<kj::ForkedPromise<Status>> committing_;
  kj::Promise<void> forgetting_ = kj::READY_NOW;  // resets committing_ when it is done
  Background background_;
};

}  // namespace psd
