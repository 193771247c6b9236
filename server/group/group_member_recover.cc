// How people let a GroupMember take the place of a primary that is dead.

#include <utility>

#include <fmt/format.h>

#include "server/group/group_member.h"
#include "server/group/group_text.h"

namespace psd {
namespace {

/// A connection that finds out who is at a daemon's addresses, and whom it tells. What it hears on its thread
/// is told on this one, in order.
struct Look {
  explicit Look(kj::Own<kj::PromiseFulfiller<Status>> whom) : fulfiller(kj::mv(whom)) {}
  ~Look() noexcept(false) {
    if (connection) connection->stop();
  }
  kj::Own<kj::PromiseFulfiller<Status>> fulfiller;
  std::unique_ptr<PrimaryConnection> connection;
};

}  // namespace

kj::Promise<Status> GroupMember::recover() {
  if (serving_ > 0) return Status(ErrorCode::invalidArgument, "this daemon is the primary already");
  if (plan_.moved()) return Status(ErrorCode::invalidArgument, "the model has moved to other daemons");
  if (life_ == Life::begins)
    return Status(ErrorCode::notReady, "the plan is not known yet: " + plan_.trouble());
  // As it is now: it may name others than the last time.
  return plan_.read()
      .then([this](Result<PlanView> plan) -> kj::Promise<Status> {
        if (!plan.ok()) return Status(plan.error());
        learn(plan);
        if (state_.plan().vacant()) {
          return Status(ErrorCode::notReady,
                        "there is no plan; who knows it from before writes it again: " + plan_.trouble());
        }
        const PlanView now = state_.plan();
        auto asked = wouldRefuse(now.primary, "the primary");
        if (!now.standby || *now.standby == state_.me()) return asked;
        return asked.then([this, standby = *now.standby](Status refused) -> kj::Promise<Status> {
          if (!refused.ok()) return refused;
          return wouldRefuse(standby, "the standby in sync");
        });
      })
      .then([this](Status refused) { return refused.ok() ? claimAfterAll() : refused; });
}

kj::Promise<Status> GroupMember::wouldRefuse(DaemonId daemon, std::string what) {
  if (daemon == state_.me()) return Status();
  auto pair = kj::newPromiseAndFulfiller<Status>();
  auto look = std::make_shared<Look>(kj::mv(pair.fulfiller));
  const auto tell = [this, weak = std::weak_ptr(look)](Status status) {
    mailbox_.put([weak, status = std::move(status)]() mutable {
      if (const auto here = weak.lock()) here->fulfiller->fulfill(std::move(status));
    });
  };
  const auto lives = [what](const std::string& how) {
    return Status(ErrorCode::invalidArgument, what + " lives, and the run goes on with it: " + how);
  };
  PrimaryDial order;
  order.addresses = plan_.addressesOf(daemon);
  if (order.addresses.empty()) return Status();
  const std::string at = order.addresses.front().toString();
  order.primary = daemon.value;
  order.follower = state_.me().value;
  order.ownAddresses = terms_.addresses;
  order.name = terms_.name;
  order.heardMs = std::make_shared<std::atomic<uint64_t>>(0);
  order.events.troubled = [tell, what](bool answers, const Status& why) {
    if (!answers) return;
    tell({ErrorCode::invalidArgument,
          fmt::format("it is not known whether {} is dead, since something answers at its address: {}", what,
                      why.message())});
  };
  order.events.ended = [tell, lives, at](ConnectionEnd how, const Status&) {
    tell(how == ConnectionEnd::dead ? Status() : lives("it answers at " + at));
  };
  look->connection = dial_(std::move(order));
  // Who does not answer for so long is no better than dead: the swap keeps it from going on.
  return timer_.timeoutAfter(terms_.replication.aloneMs * kj::MILLISECONDS, kj::mv(pair.promise))
      .catch_([](kj::Exception&&) { return Status(); })
      .attach(kj::mv(look));
}

Status GroupMember::claimAfterAll() {
  // It may be the primary by now, or hear it.
  if (serving_ > 0) return {};
  if (state_.role() == GroupRole::standby) {
    return {ErrorCode::invalidArgument,
            "this daemon is the standby in sync: it takes over by itself when the primary is dead"};
  }
  if (*heardMs_ > 0 &&
      secondsSince(*heardMs_) * 1000 < 2.0 * static_cast<double>(terms_.replication.silenceMs)) {
    return {ErrorCode::invalidArgument, "the primary lives: it was heard just now"};
  }
  const PlanView plan = state_.plan();
  happen([&](TimePoint time) { return state_.claim(plan, time); });
  return {};
}

}  // namespace psd
