// ReplicaController: following, and takeover.

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/cluster/replica_controller.h"
#include "server/cluster/replica_text.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kDialAgain{200}, kDialAgainMax{5'000};
constexpr kj::Duration kLastLook = 1 * kj::SECONDS;  // for a read whether the model has moved

/// Whether to retry soon: the primary is not ready yet.
bool isPassing(ErrorCode code) { return code == ErrorCode::notReady || code == ErrorCode::standby; }

}  // namespace

void ReplicaController::act(const replica_action::Follow& follow) {
  const bool same = following_ && following_->primary == follow.primary;
  if (same && connection_) return;
  following_ = follow;
  hasFollowed_.insert(follow.primary);
  if (!same) dialPause_ = {};
  // Records in flight are lost: the copy is of use only if the primary is dead.
  dial(hasCopy_ && same);
}

void ReplicaController::dial(bool probeOnly) {
  if (connection_) connection_->stop();
  connection_ = nullptr;
  if (!probeOnly) {
    // The document may rely on the copy, so it cannot just be replaced.
    if (hasCopy_) daemon_.restart("another primary is to be followed");
    copy_ = std::make_shared<Follower>(
        terms_.replication, [this, term = following_->term](Env& files, const Checkpoint& checkpoint) {
          return model_.makeCopy(files, checkpoint, term);
        });
  }
  const uint64_t number = ++connections_;
  const auto on = [this, number](auto handler) {
    return [this, number, handler](auto... what) {
      mailbox_.put([this, number, handler, what...] {
        if (number == connections_ && connection_) handler(what...);
      });
    };
  };
  PrimaryDial order;
  order.addresses = document_.addressesOf(following_->primary);
  order.primary = following_->primary.value;
  order.follower = state_.me().value;
  order.ownAddresses = terms_.addresses;
  order.folderTerm = folderTerm();
  order.name = terms_.name;
  if (!probeOnly) order.copy = copy_;
  order.heardMs = heardMs_;
  order.events.caughtUp = on([this] { caughtUp(); });
  order.events.documentChanged = on([this] { act(replica_action::Read{}); });
  order.events.another = on([this](uint64_t folderTerm) {
    // At this daemon's address it is this process itself.
    if (!isHere(document_.addressesOf(following_->primary)))
      peer_ = PeerFolder{document_.primaryAddress(), folderTerm};
  });
  order.events.runEnded = on([this](const std::string& reason) { endWithRun(reason); });
  order.events.troubled = on([this](bool, const Status& why) { waitFor(causeOf(why)); });
  order.events.ended = on([this](ConnectionEnd how, const Status& why) { connectionEnded(how, why); });
  connection_ = dial_(std::move(order));
}

void ReplicaController::endWithRun(const std::string& reason) {
  const bool known = std::exchange(rules_, Rules::over) == Rules::over;
  withhold();
  leaving_ = true;
  // Otherwise the copy might save the departed trainers again after they were forgotten.
  kj::Promise<void> copied = copy_ ? copy_->end() : kj::READY_NOW;
  tasks_.add(copied.then([this, known] { return known ? kj::Promise<void>(kj::READY_NOW) : checkForMove(); })
                 .then([this, reason] {
                   daemon_.exit("the primary has ended the run: " + reason);
                   resolveLeave();
                 }));
}

kj::Promise<void> ReplicaController::checkForMove() {
  return timer_.timeoutAfter(kLastLook, document_.read().ignoreResult())
      .catch_([](kj::Exception&&) {})
      .then([this] {
        // The watch may have seen it, even if the read failed.
        if (document_.moved()) daemon_.adoptMove(*document_.moved());
      });
}

void ReplicaController::caughtUp() {
  hasCopy_ = true;
  waitsFor_.clear();
  dialPause_ = {};
  model_.showCopy();
  reportHeld();
}

Status ReplicaController::causeOf(const Status& why) const {
  // If the copy failed, the primary was notified and closed the connection.
  const auto copied = copy_ ? copy_->progress() : Result<FollowerProgress>(FollowerProgress{});
  return copied.ok() ? why : copied.status();
}

Status ReplicaController::withAdvice(const Status& primaryDead) const {
  return {primaryDead.error().code, primaryDead.message() + "; " + adviceOf(state_.plan())};
}

void ReplicaController::waitFor(const Status& why) {
  if (waitsFor_ != why.message()) spdlog::warn("following {}: {}", document_.primaryAddress(), why.message());
  waitsFor_ = why.message();
}

void ReplicaController::connectionEnded(ConnectionEnd how, const Status& ended) {
  if (leaving_) return;
  const Status why = causeOf(ended);
  const bool mayTakeOver = state_.role() == ReplicaRole::standby;
  waitFor(how == ConnectionEnd::dead && !mayTakeOver ? withAdvice(why) : why);
  const DaemonId primary = following_->primary;
  if (how == ConnectionEnd::dead) {
    handleEvent([&](TimePoint time) { return state_.peerDead(primary, time); });
    handleEvent([&](TimePoint time) { return state_.primaryConnectionGone(time); });
    if (state_.role() == ReplicaRole::standby || serving_.term() > 0) return;
  } else if (hasCopy_) {
    // Records from a new connection do not continue this copy.
    daemon_.restart("the primary is alive, and the connection to it is gone: " + why.message());
  } else {
    handleEvent([&](TimePoint time) { return state_.primaryConnectionGone(time); });
  }
  // It may be ready later, or the document may name another primary by then.
  dialPause_ =
      isPassing(why.error().code) ? kDialAgain : std::clamp(2 * dialPause_, kDialAgain, kDialAgainMax);
  tasks_.add(timer_.afterDelay(dialPause_.count() * kj::MILLISECONDS).then([this, number = connections_] {
    if (number == connections_ && serving_.term() == 0 && !hasCopy_ && connection_) dial(false);
  }));
}

void ReplicaController::act(const replica_action::CloseReplication&) {
  if (connection_) connection_->stop();
  connection_ = nullptr;
}

void ReplicaController::act(const replica_action::NotifyLeaving&) {
  if (copy_) copy_->leave();  // the next answer reports it
}

bool ReplicaController::folderHasAllVersions() const {
  // An operator has chosen the state, whatever other daemons have served.
  if (recovers_ || folder_.chosen) return false;
  // A folder without a record begins the run, or was that of a daemon without a replica set. The rules let a
  // daemon start from another one's state only if that is complete.
  const auto& record = folder_.record;
  return !record || !record->standby || record->complete;
}

void ReplicaController::act(const replica_action::Promote& promoted) {
  if (connection_) connection_->stop();
  connection_ = nullptr;
  const uint64_t silentMs = *heardMs_;
  if (hasCopy_ && copy_) {
    auto followed = copy_->finish();
    copy_ = nullptr;
    if (!followed.ok()) daemon_.restart("the copy of the primary's model is unusable: " + followed.message());
    replicator_->resumeFrom(std::max(followed->next, state_.number() + 1));
    followed->hasAllVersions = followed->hasAllVersions && !recovers_;
    model_.serveCopy(*std::move(followed), promoted.term);
    takeoverSeconds_ = secondsSince(silentMs);
    daemon_.note("takeover",
                 fmt::format("primary of term {} now; last heartbeat of the previous one {:.3f} s ago",
                             promoted.term, takeoverSeconds_));
  } else {
    copy_ = nullptr;
    replicator_->resumeFrom(state_.number() + 1);
    if (Status served = model_.serve(promoted.term, folderHasAllVersions()); !served.ok()) {
      daemon_.fail(served);
      return;
    }
  }
  beginServing(promoted.term);
}

void ReplicaController::act(const replica_action::TermRenewed& renewed) {
  serving_.serve(renewed.term);
  model_.continueServing(renewed.term);
  daemon_.note("primary",
               fmt::format("rewrote the missing cluster document: primary of term {}", renewed.term));
}

void ReplicaController::beginServing(uint64_t term) {
  serving_.serve(term);
  waitsFor_.clear();
  for (ServingWaiter& waiter : std::exchange(servingWaiters_, {})) {
    if (hasTakenOver(waiter.known, waiter.primary)) {
      waiter.served->fulfill(uint64_t{term});
    } else {
      servingWaiters_.push_back(kj::mv(waiter));
    }
  }
  handleEvent([&](TimePoint time) { return state_.tick(time); });
}

bool ReplicaController::hasTakenOver(uint64_t known, DaemonId primary) const {
  return serving_.term() > known && (primary == DaemonId() || hasFollowed_.contains(primary));
}

kj::Promise<uint64_t> ReplicaController::whenServing(uint64_t known, DaemonId primary) {
  if (hasTakenOver(known, primary)) return serving_.term();
  std::erase_if(servingWaiters_, [](ServingWaiter& waiter) { return !waiter.served->isWaiting(); });
  auto pair = kj::newPromiseAndFulfiller<uint64_t>();
  servingWaiters_.push_back({known, primary, kj::mv(pair.fulfiller)});
  return kj::mv(pair.promise);
}

}  // namespace psd
