#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "common/types/ids.h"
#include "server/policy/measured_grace.h"

namespace psd {

using TimePoint = std::chrono::steady_clock::time_point;

/// The rules by which a synchronous round closes.
struct RoundRules {
  /// So many trainers of a round are not waited for: it closes with the first N of N + b.
  uint32_t backupTrainers = 0;
  /// Fewer contributions do not make a round. At least 1.
  uint32_t quorum = 1;
  /// So many contributions make a round under a rule of grace where no quorum of trainers is left, as at the
  /// end of a run. At least 1, at most the quorum.
  uint32_t least = 1;
  /// No round ends before so many trainers, or a quorum, have been in at the same time.
  uint32_t startTrainers = 0;
  /// From a round's first contribution, of the first round from the start on; nothing: no limit.
  std::optional<std::chrono::milliseconds> timeout;
  /// From when a quorum of an open round is there; then it closes with what has come. Nothing: it waits for
  /// all of its trainers.
  std::optional<std::chrono::milliseconds> grace;
  /// That is the most, and as long a grace is given as MeasuredGrace tells of the trainers that are missing.
  bool graceMeasured = false;
  /// After the timeout go on with the contributions that are there, if they are a quorum, rather than fail.
  bool proceedOnTimeout = true;
};

/// How a round ended.
struct RoundEnd {
  enum class How {
    closed,      ///< the round's contributions are to be combined and applied once
    timedOut,    ///< the round's contributions are to be dropped and refused
    quorumLost,  ///< too few trainers are left for a quorum: contributions are to be dropped and refused
  };
  uint64_t round = 0;
  How how = How::closed;
  std::vector<SessionId> contributors;  ///< ascending
  std::vector<SessionId> missing;       ///< in the round, but did not contribute; ascending
  double seconds = 0;                   ///< since it opened
  double graceSeconds = 0;              ///< since a quorum was there, under a rule of grace
};

/// Somebody that a round or a bound waits for.
struct Awaited {
  SessionId session;
  TimePoint since;  ///< from when on somebody has been waiting for it
  bool operator==(const Awaited&) const = default;
};

/// Synchronous rounds over the trainers that are in (BSP; with backup trainers Chen, Pan, Monga, Bengio,
/// Jozefowicz 2016). Rounds are numbered by the updates made before them: round r takes gradients of the
/// parameters after r rounds, closes once, and r + 1 opens in the same call. A round that fails changes no
/// parameters, so it begins again under its number, and gradients of those parameters are still good for it.
///
/// Under a rule of grace a round that has a quorum closes so long after that at the latest.
///
/// In a round are the trainers that are in when its first contribution comes. Who joins later is waited for
/// from the next round on, but what it contributes counts, and it is waited for at once when the round has
/// too few trainers left for a quorum. Who leaves is waited for no longer; what it contributed stands.
///
/// The first round waits for as many trainers to come as it takes; who has contributed may go. After that no
/// wait is without an end: a live trainer is waited for until it contributes, leaves or the timeout ends the
/// round, and a round whose quorum is out of reach fails at its timeout, without a timeout or with nobody
/// left at once.
///
/// Pure: no threads, locks or clocks. Owned by whoever serialises the calls; times must not go back.
class SyncRounds {
 public:
  enum class Contribution {
    taken,
    late,      ///< its round is closed
    ahead,     ///< its round is yet to open: nobody can have seen those parameters
    repeated,  ///< the trainer has contributed to this round
    stranger,  ///< the trainer is not in
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
  /// Until when the grace of the open round runs; nothing: it does not, as no quorum is there.
  std::optional<TimePoint> closingUntil() const {
    return closing_ ? std::optional(closing_->until) : std::nullopt;
  }
  /// Whether rounds no longer wait for trainers to begin together.
  bool started() const { return started_; }
  /// Lets the first round begin with a quorum of trainers. To be called before any joins.
  void startWithQuorum() { startTrainers_ = rules_.quorum; }
  /// The first round begins with as many trainers as there were `before`, or more by the rules. But from so
  /// long after the first trainer joined rounds wait for no others to begin together: some may be done. To be
  /// called before any joins.
  void startWithin(std::chrono::milliseconds most, uint32_t before) {
    startWithin_ = most;
    startTrainers_ = std::max(startTrainers_, before);
  }

  /// A trainer joins. Gives the end of the round, if the round only waited for the start.
  std::optional<RoundEnd> join(SessionId session, TimePoint now);
  /// A trainer left or is lost; unknown ones are ignored. Gives the end of the round, if this ended it.
  std::optional<RoundEnd> leave(SessionId session, TimePoint now);
  /// A gradient of the trainer's is here, whole, of whatever round: a measured grace goes by that.
  void came(SessionId session, TimePoint now) { measured_.came(session, now); }
  /// The trainer's gradient of round `round` is here, whole.
  Answer contribute(SessionId session, uint64_t round, TimePoint now);
  /// Closes the open round with the contributions that it has; does nothing if it has none.
  std::optional<RoundEnd> close(TimePoint now);
  /// Ends the round if its time is over. To be called at deadline(), or any time.
  std::optional<RoundEnd> tick(TimePoint now);
  /// When the open round's time is over, or before the start that of waiting for it; nothing while nobody
  /// waits, or while neither a grace nor a timeout runs.
  std::optional<TimePoint> deadline() const;

  /// Trainers without which the open round is not complete; empty while nobody has contributed. With backup
  /// trainers any of them will do.
  std::vector<Awaited> waitingFor() const;
  /// How many trainers must join before a round that waits for them can close; mostly 0.
  uint32_t joinsNeeded() const;

 private:
  /// A grace that runs.
  struct Closing {
    TimePoint since, until;
  };

  void admitAll(TimePoint now);
  /// From now on, where the trainers that are missing are given a grace.
  Closing closingFrom(TimePoint now);
  /// Begins with the first round, if so many trainers are in.
  void startWith(size_t trainers, TimePoint now);
  std::optional<RoundEnd> settle(TimePoint now);
  RoundEnd end(RoundEnd::How how, TimePoint now);
  bool hasQuorum() const { return contributors_.size() + awaited_.size() >= rules_.quorum; }
  /// So many contributions make a round: a quorum, or under a rule of grace all that can come.
  size_t needed() const {
    if (!rules_.grace || hasQuorum()) return rules_.quorum;
    return std::max<size_t>(rules_.least, contributors_.size() + awaited_.size());
  }
  bool enough() const { return contributors_.size() >= needed(); }
  bool inReach() const { return contributors_.size() + awaited_.size() >= needed(); }

  const RoundRules rules_;
  uint64_t number_ = 0;
  uint32_t startTrainers_;
  std::optional<std::chrono::milliseconds> startWithin_;
  std::optional<TimePoint> startBy_;  // once a trainer has come
  bool started_ = false;
  TimePoint start_;  // once started
  std::set<SessionId> live_;
  std::set<SessionId> contributors_;        // perhaps gone since
  std::map<SessionId, TimePoint> awaited_;  // live, in the round, without contribution; when it came in
  std::optional<TimePoint> firstContribution_;
  MeasuredGrace measured_;
  std::optional<Closing> closing_;
  std::optional<TimePoint> opened_;  // when the open round did; nothing while nobody is in
};

/// For people: "closed", "timed out", "lost its quorum".
std::string_view describe(RoundEnd::How how);

}  // namespace psd
