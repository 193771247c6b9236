// GroupMember: following, and takeover.

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/group/group_member.h"
#include "server/group/group_text.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kDialAgain{200}, kDialAgainMax{5'000};
constexpr kj::Duration kLastLook = 1 * kj::SECONDS;  // for a read whether the model has moved

/// Whether to retry soon: the primary is not ready yet.
bool isPassing(ErrorCode code) { return code == ErrorCode::notReady || code == ErrorCode::standby; }

}  // namespace

void GroupMember::act(const group_action::Follow& follow) {
  const bool same = following_ && following_->primary == follow.primary;
  if (same && connection_) return;
  following_ = follow;
  hasFollowed_.insert(follow.primary);
  if (!same) dialPause_ = {};
  // Records in flight are lost: the copy is of use only if the primary is dead.
  dial(hasCopy_ && same);
}

void GroupMember::dial(bool onlyToLook) {
  if (connection_) connection_->stop();
  connection_ = nullptr;
  if (!onlyToLook) {
    // The document may rely on the copy, so it cannot just be replaced.
    if (hasCopy_) host_.beginAnew("another primary is to be followed");
    copy_ = std::make_shared<Follower>(
        terms_.replication, [this, epoch = following_->epoch](Env& files, const Checkpoint& checkpoint) {
          return host_.makeCopy(files, checkpoint, epoch);
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
  order.addresses = plan_.addressesOf(following_->primary);
  order.primary = following_->primary.value;
  order.follower = state_.me().value;
  order.ownAddresses = terms_.addresses;
  order.folderEpoch = folderEpoch();
  order.name = terms_.name;
  if (!onlyToLook) order.copy = copy_;
  order.heardMs = heardMs_;
  order.events.caughtUp = on([this] { caughtUp(); });
  order.events.planChanged = on([this] { act(group_action::Read{}); });
  order.events.another = on([this](uint64_t folderEpoch) {
    // At this daemon's address it is this process itself.
    if (!isHere(plan_.addressesOf(following_->primary)))
      peer_ = PeerFolder{plan_.primaryAddress(), folderEpoch};
  });
  order.events.runEnded = on([this](const std::string& reason) { endWithRun(reason); });
  order.events.troubled = on([this](bool, const Status& why) { waitFor(causeOf(why)); });
  order.events.ended = on([this](ConnectionEnd how, const Status& why) { connectionEnded(how, why); });
  connection_ = dial_(std::move(order));
}

void GroupMember::endWithRun(const std::string& reason) {
  const bool known = std::exchange(life_, Life::runOver) == Life::runOver;
  leaving_ = true;
  // Otherwise the copy might save the departed trainers again after they were forgotten.
  kj::Promise<void> copied = copy_ ? copy_->end() : kj::READY_NOW;
  tasks_.add(copied.then([this, known] { return known ? kj::Promise<void>(kj::READY_NOW) : learnOfMove(); })
                 .then([this, reason] {
                   host_.endWithPrimary(reason);
                   tellLeft();
                 }));
}

kj::Promise<void> GroupMember::learnOfMove() {
  return timer_.timeoutAfter(kLastLook, plan_.read().ignoreResult())
      .catch_([](kj::Exception&&) {})
      .then([this] {
        // The watch may have seen it, even if the read failed.
        if (plan_.moved()) host_.movedAway(*plan_.moved());
      });
}

void GroupMember::caughtUp() {
  hasCopy_ = true;
  waitsFor_.clear();
  dialPause_ = {};
  host_.showCopy();
  tellHeld();
}

Status GroupMember::causeOf(const Status& why) const {
  // If the copy failed, the primary was notified and closed the connection.
  const auto copied = copy_ ? copy_->progress() : Result<FollowerProgress>(FollowerProgress{});
  return copied.ok() ? why : copied.status();
}

Status GroupMember::withAdvice(const Status& primaryDead) const {
  return {primaryDead.error().code, primaryDead.message() + "; " + adviceOf(state_.plan())};
}

void GroupMember::waitFor(const Status& why) {
  if (waitsFor_ != why.message()) spdlog::warn("following {}: {}", plan_.primaryAddress(), why.message());
  waitsFor_ = why.message();
}

void GroupMember::connectionEnded(ConnectionEnd how, const Status& ended) {
  if (leaving_) return;
  const Status why = causeOf(ended);
  const bool mayTakeOver = state_.role() == GroupRole::standby;
  waitFor(how == ConnectionEnd::dead && !mayTakeOver ? withAdvice(why) : why);
  const DaemonId primary = following_->primary;
  if (how == ConnectionEnd::dead) {
    happen([&](TimePoint time) { return state_.peerRefuses(primary, time); });
    happen([&](TimePoint time) { return state_.primaryConnectionGone(time); });
    if (state_.role() == GroupRole::standby || serving_ > 0) return;
  } else if (hasCopy_) {
    // Records from a new connection do not continue this copy.
    host_.beginAnew("the primary is alive, and the connection to it is gone: " + why.message());
  } else {
    happen([&](TimePoint time) { return state_.primaryConnectionGone(time); });
  }
  // It may be ready later, or the document may name another primary by then.
  dialPause_ =
      isPassing(why.error().code) ? kDialAgain : std::clamp(2 * dialPause_, kDialAgain, kDialAgainMax);
  tasks_.add(timer_.afterDelay(dialPause_.count() * kj::MILLISECONDS).then([this, number = connections_] {
    if (number == connections_ && serving_ == 0 && !hasCopy_ && connection_) dial(false);
  }));
}

void GroupMember::act(const group_action::CloseReplication&) {
  if (connection_) connection_->stop();
  connection_ = nullptr;
}

void GroupMember::act(const group_action::TellLeaving&) {
  if (copy_) copy_->leave();  // the next answer reports it
}

void GroupMember::act(const group_action::Promote& promoted) {
  if (connection_) connection_->stop();
  connection_ = nullptr;
  const uint64_t silentMs = *heardMs_;
  if (hasCopy_ && copy_) {
    auto followed = copy_->finish();
    copy_ = nullptr;
    if (!followed.ok())
      host_.beginAnew("the copy of the primary's model is unusable: " + followed.message());
    replicator_->goOnFrom(std::max(followed->next, state_.number() + 1));
    host_.serveCopy(*std::move(followed), promoted.epoch);
    takeoverSeconds_ = secondsSince(silentMs);
    host_.note("takeover",
               fmt::format("primary of term {} now; last heartbeat of the previous one {:.3f} s ago",
                           promoted.epoch, takeoverSeconds_));
  } else {
    copy_ = nullptr;
    replicator_->goOnFrom(state_.number() + 1);
    if (Status served = host_.serve(promoted.epoch); !served.ok()) {
      host_.fail(served);
      return;
    }
  }
  beginServing(promoted.epoch);
}

void GroupMember::act(const group_action::Renewed& renewed) {
  serving_ = renewed.epoch;
  host_.serveOn(renewed.epoch);
  host_.note("primary",
             fmt::format("rewrote the missing cluster document: primary of term {}", serving_));
}

void GroupMember::beginServing(uint64_t epoch) {
  serving_ = epoch;
  waitsFor_.clear();
  for (ServingWaiter& waiter : std::exchange(servingWaiters_, {})) {
    if (hasTakenOver(waiter.known, waiter.primary)) {
      waiter.served->fulfill(uint64_t{epoch});
    } else {
      servingWaiters_.push_back(kj::mv(waiter));
    }
  }
  happen([&](TimePoint time) { return state_.tick(time); });
}

bool GroupMember::hasTakenOver(uint64_t known, DaemonId primary) const {
  return serving_ > known && (primary == DaemonId() || hasFollowed_.contains(primary));
}

kj::Promise<uint64_t> GroupMember::whenServing(uint64_t known, DaemonId primary) {
  if (hasTakenOver(known, primary)) return uint64_t{serving_};
  std::erase_if(servingWaiters_, [](ServingWaiter& waiter) { return !waiter.served->isWaiting(); });
  auto pair = kj::newPromiseAndFulfiller<uint64_t>();
  servingWaiters_.push_back({known, primary, kj::mv(pair.fulfiller)});
  return kj::mv(pair.promise);
}

}  // namespace psd
