#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/types/ids.h"
#include "server/policy/measured_grace.h"

namespace psd {

using TimePoint = std::chrono::steady_clock::time_point;

/// The rules by which a synchronous round closes.
struct RoundRules {
  /// Number of trainers of a round that it does not wait for: it closes with the first N of N + b.
  uint32_t backupTrainers = 0;
  /// Minimum number of contributions of a round. At least 1.
  uint32_t quorum = 1;
  /// With a grace period: minimum number of contributions of a round when fewer trainers than the quorum are
  /// left, as at the end of a run. At least 1, at most the quorum.
  uint32_t least = 1;
  /// No round closes before this many trainers, or a quorum if that is more, were joined at the same time.
  uint32_t startTrainers = 0;
  /// Time limit of a round from its first contribution; in the first round not before the start. nullopt:
  /// none.
  std::optional<std::chrono::milliseconds> timeout;
  /// Grace period of an open round from its quorum on; then it closes with the contributions it has. nullopt:
  /// it waits for all of its trainers.
  std::optional<std::chrono::milliseconds> grace;
  /// `grace` is an upper limit, and the actual grace period is the MeasuredGrace of the missing trainers.
  bool graceMeasured = false;
  /// At the timeout, close with the present contributions if they are a quorum, rather than fail.
  bool proceedOnTimeout = true;
};

/// How a round ended.
struct RoundEnd {
  enum class How {
    closed,      ///< the contributions are to be combined and applied once
    timedOut,    ///< the contributions are to be dropped and their pushes refused
    quorumLost,  ///< too few trainers are left for a quorum: as timedOut
  };
  uint64_t round = 0;
  How how = How::closed;
  std::vector<SessionId> contributors;  ///< ascending
  std::vector<SessionId> missing;       ///< in the round, but did not contribute; ascending
  double seconds = 0;                   ///< since it opened
  double graceSeconds = 0;              ///< since its quorum, with a grace period
};

/// A trainer that a round or a staleness bound waits for.
struct Awaited {
  SessionId session;
  TimePoint since;  ///< start of the wait
  bool operator==(const Awaited&) const = default;
};

/// Synchronous rounds over the joined trainers (BSP; with backup trainers Chen, Pan, Monga, Bengio,
/// Jozefowicz 2016). Rounds are numbered by the updates made before them: round r accepts gradients of the
/// parameters after r rounds and closes once; r + 1 opens in the same call. A round that fails changes no
/// parameters, so it restarts under its number, and gradients of those parameters remain valid for it.
///
/// With a grace period, a round closes at the latest that long after its quorum.
///
/// A round consists of the trainers that are joined at its first contribution. A trainer that joins later is
/// waited for from the next round on; its contribution counts, and it is waited for immediately if the round
/// has too few trainers left for a quorum. A departed trainer is no longer waited for; its contribution
/// remains valid.
///
/// The first round waits until enough trainers have joined; its contributors may depart meanwhile. Every
/// later wait is bounded: a live trainer is waited for until it contributes, departs or the timeout ends the
/// round. A round that cannot reach its quorum fails at its timeout, or immediately if there is no timeout or
/// no trainer left.
///
/// Pure: no threads, locks or clocks. Not thread-safe: the owner serializes the calls; times must not
/// decrease.
class SyncRounds {
 public:
  enum class Contribution {
    taken,
    late,       ///< its round is closed
    ahead,      ///< its round has not opened: those parameters do not exist yet
    repeated,   ///< the trainer has already contributed to this round
    notJoined,  ///< the trainer is not joined
  };
  struct Answer {
    Contribution contribution;
    std::optional<RoundEnd> end;  ///< the round that this contribution closed
  };

  explicit SyncRounds(RoundRules rules)
      : rules_(rules),
        startTrainers_(std::max(rules.startTrainers, rules.quorum)),
        measured_(rules.grace.value_or(std::chrono::milliseconds(0))) {}

  uint64_t number() const { return number_; }  ///< of the open round
  size_t present() const { return live_.size(); }
  size_t contributions() const { return contributors_.size(); }
  /// End of the open round's grace period; nullopt: none is running, as there is no quorum.
  std::optional<TimePoint> closingUntil() const {
    return closing_ ? std::optional(closing_->until) : std::nullopt;
  }
  /// Whether enough trainers were joined for rounds to start; false: no round closes yet.
  bool started() const { return started_; }
  /// Rounds start with a quorum of trainers. Called before any join().
  void startWithQuorum() { startTrainers_ = rules_.quorum; }
  /// Rounds start with `before` trainers, the number of the previous daemon, or more if the rules say so, but
  /// no later than `most` after the first join: some trainers may have finished. Called before any join().
  void startWithin(std::chrono::milliseconds most, uint32_t before) {
    startWithin_ = most;
    startTrainers_ = std::max(startTrainers_, before);
  }

  /// A trainer joins. Returns the end of the round if it only waited for the start.
  std::optional<RoundEnd> join(SessionId session, TimePoint now);
  /// A trainer has departed; unknown sessions are ignored. Returns the end of the round if this ended it.
  std::optional<RoundEnd> leave(SessionId session, TimePoint now);
  /// A complete gradient of the trainer has arrived, for any round; an input of MeasuredGrace.
  void gradientArrived(SessionId session, TimePoint now) { measured_.gradientArrived(session, now); }
  /// The trainer's complete gradient for round `round` has arrived.
  Answer contribute(SessionId session, uint64_t round, TimePoint now);
  /// Closes the open round with the contributions it has; does nothing if it has none.
  std::optional<RoundEnd> close(TimePoint now);
  /// Ends the round if its deadline has passed. Called at deadline() or any other time.
  std::optional<RoundEnd> tick(TimePoint now);
  /// End of the open round's grace period or timeout, or before the start the end of the wait for it; nullopt
  /// if neither is running.
  std::optional<TimePoint> deadline() const;

  /// Trainers that the open round waits for; empty before its first contribution. With backup trainers, the
  /// round needs only some of them.
  std::vector<Awaited> waitingFor() const;
  /// Number of trainers that must join before the open round can close; usually 0.
  uint32_t joinsNeeded() const;
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  /// A running grace period.
  struct Closing {
    TimePoint since, until;
  };

  void awaitAll(TimePoint now);
  /// The grace period of the missing trainers, starting now.
  Closing closingFrom(TimePoint now);
  /// Starts the rounds if at least `trainers` are joined.
  void startWith(size_t trainers, TimePoint now);
  std::optional<RoundEnd> settle(TimePoint now);
  RoundEnd end(RoundEnd::How how, TimePoint now);
  bool hasQuorum() const { return contributors_.size() + awaited_.size() >= rules_.quorum; }
  /// Number of contributions needed: the quorum, or with a grace period all that can still arrive.
  size_t needed() const {
    if (!rules_.grace || hasQuorum()) return rules_.quorum;
    return std::max<size_t>(rules_.least, contributors_.size() + awaited_.size());
  }
  bool enough() const { return contributors_.size() >= needed(); }
  bool reachable() const { return contributors_.size() + awaited_.size() >= needed(); }

  const RoundRules rules_;
  uint64_t number_ = 0;
  uint32_t startTrainers_;
  std::optional<std::chrono::milliseconds> startWithin_;
  std::optional<TimePoint> startBy_;  // set by the first join
  bool started_ = false;
  TimePoint start_;  // valid if started_
  std::set<SessionId> live_;
  std::set<SessionId> contributors_;        // may have departed
  std::map<SessionId, TimePoint> awaited_;  // live trainers of the round that must contribute; since when
  std::optional<TimePoint> firstContribution_;
  MeasuredGrace measured_;
  std::optional<Closing> closing_;
  std::optional<TimePoint> opened_;  // start of the open round; nullopt while no trainer is joined
};

/// Human-readable: "closed", "timed out", "lost its quorum".
std::string_view describe(RoundEnd::How how);

}  // namespace psd
