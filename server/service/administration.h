#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/group/group_member.h"
#include "server/move/incoming_move.h"
#include "server/move/outgoing_move.h"
#include "server/service/control_loop.h"

namespace psd {

/// What an operator may ask of a daemon, whatever protocol the question comes over. Thread-safe; outlives the
/// loops.
class Administration {
 public:
  /// What becomes of another configuration, or would.
  using Changed = kj::Promise<Result<std::string>>;

  /// The functions run on the control loop; the whole daemon's.
  Administration(ControlLoop& control, std::function<DaemonStatus()> status, std::function<Changed()> reload,
                 std::function<Changed(std::string assignment)> set,
                 std::function<Changed(std::string assignment)> check)
      : control_(control),
        status_(std::move(status)),
        reload_(std::move(reload)),
        set_(std::move(set)),
        check_(std::move(check)) {}

  kj::Promise<DaemonStatus> status() {
    return control_.run([this](Coordinator&, ParameterHost&) { return status_(); });
  }
  kj::Promise<Result<HotRowsStatus>> hotRows() {
    return control_.run([](Coordinator&, ParameterHost& host) { return host.models().hotRows(); });
  }
  /// Ranks of the trainers that wait for others, ascending.
  kj::Promise<std::vector<uint32_t>> waiters() {
    return control_.run([](Coordinator&, ParameterHost& host) { return host.models().waiters(); });
  }
  /// Goes over to the configuration as it reads now; gives the change, for people.
  kj::Promise<Result<std::string>> reload() {
    return control_.run([this](Coordinator&, ParameterHost&) { return reload_(); });
  }
  /// Changes one key, "optimizer.lr=0.05", of the configuration that holds; gives the change, for people.
  kj::Promise<Result<std::string>> set(std::string assignment) {
    return control_.run([this, assignment = std::move(assignment)](Coordinator&, ParameterHost&) mutable {
      return set_(std::move(assignment));
    });
  }
  /// Whether set() of that would be taken, or reload() where it is empty; gives the change, for people.
  kj::Promise<Result<std::string>> checkChange(std::string assignment) {
    return control_.run([this, assignment = std::move(assignment)](Coordinator&, ParameterHost&) mutable {
      return check_(std::move(assignment));
    });
  }
  /// Takes a checkpoint now; gives its path once it is complete.
  kj::Promise<Result<std::string>> checkpoint() {
    return control_.run([](Coordinator&, ParameterHost& host) { return host.checkpointNow(); });
  }
  /// The newest checkpoint of this daemon.
  kj::Promise<Result<NewestPart>> newestPart() {
    return control_.run([](Coordinator&, ParameterHost& host) { return host.newestPart(); });
  }
  /// Names a checkpoint of the whole model, of which this daemon has a part.
  kj::Promise<Status> keepWhole(WholeCheckpoint whole) {
    return control_.run([whole = std::move(whole)](Coordinator&, ParameterHost& host) mutable {
      return host.keepWhole(std::move(whole));
    });
  }
  /// Ends the session of the rank's trainer and lets its process not in again; names it for people.
  kj::Promise<Result<std::string>> removeTrainer(Rank rank) {
    return control_.run(
        [rank](Coordinator& coordinator, ParameterHost&) { return coordinator.remove(rank); });
  }
  /// What happened after the event with that number; `wait`: once there is something.
  kj::Promise<DaemonEvents> events(uint64_t after, bool wait) {
    return control_.run([after, wait](Coordinator& coordinator, ParameterHost&) -> kj::Promise<DaemonEvents> {
      if (wait) return coordinator.events().nextAfter(after);
      return coordinator.events().after(after);
    });
  }
  /// This daemon's part in its group; null where it has none, as until then. Before any caller.
  void setGroup(GroupMember* group) { group_ = group; }
  /// A daemon asks to follow this one, over the connection whose loop this is.
  kj::Promise<Result<GroupMember::Admitted>> admit(FollowerRequest request, std::shared_ptr<EventLoop> loop) {
    return control_.run([this, request = std::move(request), loop = std::move(loop)](
                            Coordinator&, ParameterHost&) mutable -> Result<GroupMember::Admitted> {
      if (!group_) return noGroup();
      return group_->admit(request, std::move(loop));
    });
  }
  kj::Promise<void> feedEnded(std::shared_ptr<FeedHandle> feed, Status why) {
    return control_.run([this, feed = std::move(feed), why = std::move(why)](Coordinator&, ParameterHost&) {
      if (group_) group_->feedEnded(feed, why);
    });
  }
  /// See GroupMember::whenServing().
  kj::Promise<uint64_t> whenServing(uint64_t known, uint64_t primary) {
    return control_.run([this, known, primary](Coordinator&, ParameterHost&) -> kj::Promise<uint64_t> {
      if (!group_) return kj::NEVER_DONE;
      return group_->whenServing(known, DaemonId{primary});
    });
  }
  /// Number of this daemon's process, and GroupMember::folderEpoch().
  struct Identity {
    uint64_t daemon = 0;
    uint64_t folderEpoch = 0;
  };
  kj::Promise<Identity> identity() {
    return control_.run([this](Coordinator& coordinator, ParameterHost&) {
      return Identity{coordinator.daemonId(), group_ ? group_->folderEpoch() : 0};
    });
  }
  /// The standby becomes the primary, and this daemon its standby.
  kj::Promise<Status> switchOver() {
    return control_.run([this](Coordinator&, ParameterHost&) -> kj::Promise<Status> {
      if (Status may = takesPart(); !may.ok()) return may;
      return group_->switchOver();
    });
  }
  /// Takes the place of a dead primary with what is here, whatever is lost.
  kj::Promise<Status> recover() {
    return control_.run([this](Coordinator&, ParameterHost&) -> kj::Promise<Status> {
      if (Status may = takesPart(); !may.ok()) return may;
      return group_->recover();
    });
  }
  /// What this daemon does in a move of the model to it, and from it. Before any caller.
  void setMoves(OutgoingMove* outgoing, IncomingMove* incoming) {
    outgoing_ = outgoing;
    incoming_ = incoming;
  }
  /// Runs `work(outgoing, incoming)` on the control loop, which outlives it.
  template <class Work>
  auto inMoves(Work work) {
    return control_.run([this, work = std::move(work)](Coordinator&, ParameterHost&) mutable {
      return work(*outgoing_, *incoming_);
    });
  }
  /// Resolves when the model has moved from here; with nowhere where the daemon ends before.
  kj::Promise<MovedAway::Place> whenMoved() {
    return inMoves([](OutgoingMove& outgoing, IncomingMove&) { return outgoing.whenMoved(); });
  }
  /// Ends the run; `wait`: resolves with what came of the daemon's last work.
  kj::Promise<Status> stop(std::string reason, bool wait) {
    return control_.run([reason = std::move(reason), wait](Coordinator& coordinator,
                                                           ParameterHost&) mutable -> kj::Promise<Status> {
      coordinator.requestStop(std::move(reason));
      return wait ? coordinator.end().whenOutcome() : kj::Promise<Status>(Status());
    });
  }

 private:
  static Error noGroup() {
    return {ErrorCode::invalidArgument,
            "this daemon has no standby and is none: its configuration has no `engine`"};
  }
  /// Whether its part in its group may be asked for; the model may have moved away.
  Status takesPart() const {
    if (!group_) return noGroup();
    const auto away = outgoing_ ? outgoing_->turnedAway() : std::nullopt;
    return away ? Status(*away) : Status();
  }

  ControlLoop& control_;
  GroupMember* group_ = nullptr;
  OutgoingMove* outgoing_ = nullptr;
  IncomingMove* incoming_ = nullptr;
  const std::function<DaemonStatus()> status_;
  const std::function<Changed()> reload_;
  const std::function<Changed(std::string assignment)> set_, check_;
};

}  // namespace psd
