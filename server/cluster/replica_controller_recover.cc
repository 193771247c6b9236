// ReplicaController: what it answers while it does not serve, what it waits for, and `psd recover`.

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/cluster/replica_controller.h"
#include "server/cluster/replica_text.h"

namespace psd {
namespace {

std::string recoverAt(const std::string& address) { return "psd recover --server " + address; }

/// A connection that probes a daemon's addresses, and the promise to fulfill with the result. Events from its
/// thread are handled on the control loop, in order.
struct Look {
  explicit Look(kj::Own<kj::PromiseFulfiller<Status>> whom) : fulfiller(kj::mv(whom)) {}
  ~Look() noexcept(false) {
    if (connection) connection->stop();
  }
  kj::Own<kj::PromiseFulfiller<Status>> fulfiller;
  std::unique_ptr<PrimaryConnection> connection;
};

}  // namespace

kj::Promise<Status> ReplicaController::recover() {
  if (serving_.term() > 0) return Status(ErrorCode::invalidArgument, "this daemon is the primary already");
  if (document_.moved()) return Status(ErrorCode::invalidArgument, "the model has moved to other daemons");
  if (rules_ == Rules::unread)
    return Status(ErrorCode::notReady, "the cluster document is not known yet: " + document_.trouble());
  // The current document: it may name other daemons than the last one seen.
  return document_.read()
      .then([this](Result<ClusterView> plan) -> kj::Promise<Status> {
        if (!plan.ok()) return Status(plan.error());
        learn(plan);
        const ClusterView now = state_.plan();
        if (now.vacant() && now.ended && (now.ended->guessed() || hasFollowed_.empty()))
          return probeDead(now.ended->primary, "the last primary");
        if (now.vacant()) {
          return Status(
              ErrorCode::notReady,
              "there is no cluster document; a daemon that knows it writes it again: " + document_.trouble());
        }
        auto asked = probeDead(now.primary, "the primary");
        if (!now.standby || *now.standby == state_.me()) return asked;
        return asked.then([this, standby = *now.standby](Status refused) -> kj::Promise<Status> {
          if (!refused.ok()) return refused;
          return probeDead(standby, "the standby in sync");
        });
      })
      .then([this](Status refused) { return refused.ok() ? claimIfAllowed() : refused; });
}

kj::Promise<Status> ReplicaController::probeDead(DaemonId daemon, std::string what) {
  if (daemon == state_.me()) return Status();
  auto pair = kj::newPromiseAndFulfiller<Status>();
  auto look = std::make_shared<Look>(kj::mv(pair.fulfiller));
  const auto tell = [this, weak = std::weak_ptr(look)](Status status) {
    mailbox_.put([weak, status = std::move(status)]() mutable {
      if (const auto here = weak.lock()) here->fulfiller->fulfill(std::move(status));
    });
  };
  const auto lives = [what](const std::string& how) {
    return Status(ErrorCode::invalidArgument, what + " is alive and continues the run: " + how);
  };
  PrimaryDial order;
  order.addresses = document_.addressesOf(daemon);
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
          fmt::format("it is unknown whether {} is dead, since something answers at its address: {}", what,
                      why.message())});
  };
  order.events.ended = [tell, lives, at](ConnectionEnd how, const Status&) {
    tell(how == ConnectionEnd::dead ? Status() : lives("it answers at " + at));
  };
  look->connection = dial_(std::move(order));
  // A daemon that does not answer for that long counts as dead: the swap fences it.
  return timer_.timeoutAfter(terms_.replication.aloneMs * kj::MILLISECONDS, kj::mv(pair.promise))
      .catch_([](kj::Exception&&) { return Status(); })
      .attach(kj::mv(look));
}

// --- What others are answered ----------------------------------------------------------------------------

void ReplicaController::withhold() {
  if (phase() != ServingPhase::serving) serving_.withhold(phase(), rejectionReason());
}

ServingPhase ReplicaController::phase() const {
  if (rules_ == Rules::unread) return ServingPhase::starting;
  const ReplicaRole role = state_.role();
  if (role == ReplicaRole::primary) return ServingPhase::serving;
  if (rules_ == Rules::over || role == ReplicaRole::ended) return ServingPhase::ended;
  return role == ReplicaRole::standby ? ServingPhase::standby : ServingPhase::syncing;
}

Error ReplicaController::rejectionReason() const {
  if (rules_ == Rules::unread) {
    return {ErrorCode::standby,
            "this daemon does not know the cluster document yet" +
                (document_.trouble().empty() ? std::string() : ": " + document_.trouble())};
  }
  if (state_.role() == ReplicaRole::ended) {
    if (document_.ended()) return {ErrorCode::standby, "the run is over"};
    if (state_.plan().primary == state_.me()) return {ErrorCode::standby, "this daemon is about to exit"};
    return {ErrorCode::standby, "this daemon has stepped down; the primary is " + document_.primaryAddress()};
  }
  if (undecided_) return {ErrorCode::standby, "this daemon does not serve: " + waitsFor_};
  const std::string primary = document_.primaryAddress();
  const bool own = std::ranges::any_of(terms_.addresses,
                                       [&](const Address& address) { return address.toString() == primary; });
  return {ErrorCode::standby,
          fmt::format("this daemon is the {}{} of {}{} and does not serve", describe(state_.role()),
                      state_.role() == ReplicaRole::syncing ? " replica" : "",
                      own ? "the previous process at " : "", primary)};
}

// --- What a daemon waits for ---------------------------------------------------------------------------

std::string ReplicaController::recoverHere() const {
  return terms_.addresses.empty() ? "psd recover" : recoverAt(terms_.addresses.front().toString());
}

std::string ReplicaController::ownStateText() const {
  if (!folder_.record) return "no state of it";
  if (folder_.record->term == 0) return "a state of an unknown term";
  return fmt::format("the state of term {}", folder_.record->term);
}

bool ReplicaController::isHere(const std::vector<Address>& addresses) const {
  return std::ranges::any_of(addresses, [this](const Address& address) {
    return std::ranges::find(terms_.addresses, address) != terms_.addresses.end();
  });
}

std::string ReplicaController::adviceOf(const ClusterView& plan) const {
  const uint64_t here = folderTerm();
  const bool primaryWasHere = isHere(document_.addressesOf(plan.primary));
  const bool noneHasIt = peer_ && std::max(peer_->term, here) < plan.term;
  if (noneHasIt && peer_->term != here) {
    return fmt::format(
        "that primary, of term {}, saved nothing before it died: neither the folder here nor the one at {} "
        "has its state; the newest state left is that of term {}: {}",
        plan.term, peer_->address, std::max(peer_->term, here),
        here > peer_->term ? recoverHere() : recoverAt(peer_->address));
  }
  const std::string have = here > 0 ? "what it has, " + ownStateText() : "what it has";
  if (primaryWasHere && here < plan.term && here > 0) {
    return fmt::format(
        "the folder here has no state of term {}, in which that primary served; start the other daemon of "
        "the replica set, whose folder may have newer state than {}, or let this daemon serve that: {}",
        plan.term, ownStateText(), recoverHere());
  }
  return fmt::format("restart the primary or, if that is not possible, let this daemon serve {}: {}", have,
                     recoverHere());
}

std::string ReplicaController::undecided() const {
  const ClusterView& plan = state_.plan();
  if (state_.contradicts()) {
    return fmt::format(
        "the run of {} (term {}) was started without the state in the folder here, {}, which following it "
        "would replace: to follow it, start with another folder; or end that run and let this daemon serve "
        "its own state: {}",
        document_.primaryAddress(), plan.term, ownStateText(), recoverHere());
  }
  const bool waits = plan.ended && state_.role() == ReplicaRole::syncing &&
                     (plan.ended->guessed() || hasFollowed_.empty()) &&
                     !startDelay(*plan.ended, folder_, ReplicationRules());
  return waits ? undecided(*plan.ended) : "";
}

std::string ReplicaController::undecided(const EndedRun& run) const {
  const bool sameAddress = isHere(document_.addressesOf(run.primary));
  const std::string at = document_.addressOf(run.primary);
  if (run.guessed()) {
    const std::string none = fmt::format("there is no cluster document in the engine ({})", document_.key());
    if (hasCopy_) {
      return fmt::format(
          "{}; this daemon has a copy of the state of the primary at {} in term {}: restart that one, or let "
          "this daemon serve the copy: {}",
          none, at, run.term, recoverHere());
    }
    if (!sameAddress) {
      return fmt::format(
          "{}; of the daemons that were started {} has the newest state, that of term {}; here is {}: {}",
          none, at, run.term, ownStateText(), recoverAt(at));
    }
    return fmt::format(
        "{}; of the daemons that were started this one has the newest state, {}: if no other folder has a "
        "newer one, let this daemon serve it: {}",
        none, ownStateText(), recoverHere());
  }
  if (!run.saved) {
    return fmt::format(
        "the run is over, and its last primary, of term {} at {}, saved nothing; here is {}: to start from "
        "that: {}",
        run.term, at, ownStateText(), recoverHere());
  }
  return fmt::format(
      "the run is over, and its last primary, at {}, has its state, that of term {}; here is {}: start the "
      "daemon over {} or, if that is not possible, let this one serve its own state: {}",
      at, run.term, ownStateText(), sameAddress ? "that primary's folder" : "its folder there",
      recoverHere());
}

void ReplicaController::updateUndecided() {
  const std::string why = undecided();
  if (why.empty() && !std::exchange(undecided_, false)) return;
  undecided_ = !why.empty();
  if (undecided_ && waitsFor_ != why) spdlog::warn("waiting: {}", why);
  waitsFor_ = why;
}

Status ReplicaController::claimIfAllowed() {
  // Meanwhile it may have become primary, or received a heartbeat of the primary.
  if (serving_.term() > 0) return {};
  if (state_.role() == ReplicaRole::standby) {
    return {ErrorCode::invalidArgument,
            "this daemon is the standby in sync: it takes over automatically when the primary is dead"};
  }
  if (*heardMs_ > 0 &&
      secondsSince(*heardMs_) * 1000 < 2.0 * static_cast<double>(terms_.replication.silenceMs)) {
    return {ErrorCode::invalidArgument, "the primary is alive: its last heartbeat was just now"};
  }
  const ClusterView plan = state_.plan();
  bool claims = false;
  recovers_ = true;
  handleEvent([&](TimePoint time) {
    ReplicaActions actions = state_.claim(plan, time);
    claims = !actions.empty();
    return actions;
  });
  recovers_ = claims;
  if (claims) return {};
  return {ErrorCode::notReady,
          "this daemon is changing the cluster document, or is about to take over; repeat"};
}

}  // namespace psd
