#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "test/simulation/schedules.h"

namespace psd::rounds_simulation_test {
namespace {

using std::chrono::milliseconds;
using testing::Random;
using testing::VirtualTime;
using Contribution = SyncRounds::Contribution;
using How = RoundEnd::How;

/// Trainers that pull, compute and push over a network with delays and reordering, freeze, die, rejoin and
/// join late, and the expected state of the rounds, computed from what each of them did.
class RoundsWorld {
 public:
  explicit RoundsWorld(Random& random) : random_(random), rules_(drawRules()), rounds_(rules_) {
    const uint64_t trainers = random_.between(1, 7);
    for (uint64_t i = 0; i < trainers; i++) later(random_.oneIn(3) ? 400 : 5, [this] { join(); });
  }

  void run() {
    const auto check = [this] { testing::requireInvariants(rounds_); };
    REQUIRE(time_.run(200'000, check));  // otherwise it loops
    // The start waits for trainers without limit, as intended, until there are enough.
    for (int more = 0; rounds_.present() > 0 && !rounds_.started() && more < 100; more++) {
      join();
      REQUIRE(time_.run(200'000, check));
    }
    // No trainer has anything left to do, so none may be left waiting.
    for (const auto& trainer : trainers_) {
      INFO("session " << trainer->session.value);
      CHECK_FALSE(trainer->live);
    }
    CHECK(rounds_.present() == 0);
    CHECK(rounds_.contributions() == 0);
    CHECK(open_.empty());
    CHECK(taken_ == accounted_);
  }

  uint64_t closed() const { return closed_; }
  uint64_t failed() const { return failed_; }
  uint64_t late() const { return late_; }
  uint64_t proceeded() const { return proceeded_; }
  uint64_t midRoundJoins() const { return midRoundJoins_; }
  uint64_t ahead() const { return ahead_; }
  uint64_t outOfGrace() const { return outOfGrace_; }

 private:
  struct Trainer {
    SessionId session;
    uint64_t stepsLeft;
    uint64_t slowness;
    bool live = true;
    bool waiting = false;  // for the answer to its push
  };
  using Step = std::shared_ptr<Trainer>;

  RoundRules drawRules() {
    RoundRules rules;
    if (random_.oneIn(3)) {
      rules.grace = milliseconds(random_.between(0, 60));
      rules.graceMeasured = random_.oneIn(2);
    } else if (random_.oneIn(2)) {
      rules.backupTrainers = static_cast<uint32_t>(random_.between(0, 2));
    }
    if (random_.oneIn(3)) rules.quorum = static_cast<uint32_t>(random_.between(1, 4));
    if (random_.oneIn(2)) rules.timeout = milliseconds(random_.between(1, 300));
    if (random_.oneIn(3)) rules.startTrainers = static_cast<uint32_t>(random_.between(1, 8));
    rules.proceedOnTimeout = random_.oneIn(2);
    return rules;
  }

  void later(uint64_t msMax, std::function<void()> event) {
    time_.after(milliseconds(random_.between(0, msMax)), std::move(event));
  }

  void join() {
    auto trainer = std::make_shared<Trainer>(
        Trainer{SessionId{++lastSession_}, random_.between(0, 12), random_.oneIn(4) ? uint64_t{200} : 20});
    trainers_.push_back(trainer);
    if (rounds_.contributions() > 0) midRoundJoins_++;
    const bool before = rounds_.started();
    auto end = rounds_.join(trainer->session, time_.now());
    if (rounds_.started() && !before) started();
    check(end);
    if (random_.oneIn(5)) {
      later(500, [this, trainer] { depart(trainer); });
    }
    pull(trainer);
  }

  void started() {
    start_ = time_.now();
    REQUIRE(rounds_.present() >= std::max(rules_.startTrainers, rules_.quorum));
    REQUIRE(closed_ == 0);
    tickWhenDue();
  }

  void depart(const Step& trainer) {
    if (!trainer->live) return;
    trainer->live = false;
    auto end = rounds_.leave(trainer->session, time_.now());
    check(end);
    if (trainer->stepsLeft > 0 && restarts_ < 20 && random_.oneIn(2)) {
      restarts_++;
      later(300, [this] { join(); });
    }
  }

  void pull(const Step& trainer) {
    if (!trainer->live) return;
    if (trainer->stepsLeft == 0) return depart(trainer);
    if (random_.oneIn(40)) {
      // Frozen: it contributes no more, and its lease expires.
      return time_.after(milliseconds(1000), [this, trainer] { depart(trainer); });
    }
    const uint64_t round = rounds_.number();
    later(trainer->slowness, [this, trainer, round] { push(trainer, round); });
  }

  /// A gradient of a parameter version that does not exist yet: it has no effect.
  void pushAhead(const Step& trainer) {
    const uint64_t round = rounds_.number() + random_.between(1, 3);
    const auto answer = rounds_.contribute(trainer->session, round, time_.now());
    REQUIRE(answer.contribution == (trainer->live ? Contribution::ahead : Contribution::notJoined));
    REQUIRE_FALSE(answer.end);
    ahead_ += trainer->live;
    check({});
  }

  void push(const Step& trainer, uint64_t round) {
    if (random_.oneIn(20)) pushAhead(trainer);
    if (trainer->live) rounds_.gradientArrived(trainer->session, time_.now());
    const bool repeated = open_.contains(trainer->session);
    const uint64_t number = rounds_.number();
    const auto answer = rounds_.contribute(trainer->session, round, time_.now());
    const Contribution expected = !trainer->live   ? Contribution::notJoined
                                  : round < number ? Contribution::late
                                  : repeated       ? Contribution::repeated
                                                   : Contribution::taken;
    REQUIRE(answer.contribution == expected);
    if (expected == Contribution::late) {
      late_++;
      check({});
      return pull(trainer);
    }
    if (expected != Contribution::taken) return check({});
    taken_++;
    if (open_.empty()) opened_ = time_.now();
    open_.insert(trainer->session);
    trainer->waiting = true;
    if (random_.oneIn(10)) {  // the network duplicates it
      later(30, [this, trainer, round] { repeat(trainer, round); });
    }
    check(answer.end);
    tickWhenDue();
  }

  void tickWhenDue() {
    if (auto deadline = rounds_.deadline()) {
      time_.after(std::chrono::ceil<milliseconds>(*deadline - time_.now()),
                  [this] { check(rounds_.tick(time_.now())); });
    }
  }

  /// Records when a quorum of the open round is present, and that no trainer waits longer than the grace
  /// period.
  void checkGrace() {
    if (!rules_.grace || !rounds_.started()) return;
    if (open_.size() < rules_.quorum) return;
    if (!quorumAt_) quorumAt_ = time_.now();
    REQUIRE(rounds_.closingUntil());
    REQUIRE(*rounds_.closingUntil() <= *quorumAt_ + *rules_.grace);
    REQUIRE(time_.now() <= std::chrono::ceil<milliseconds>(*rounds_.closingUntil()));
  }

  /// When the open round times out.
  TimePoint due() const { return std::max(opened_, start_) + *rules_.timeout; }

  void repeat(const Step& trainer, uint64_t round) {
    // After a failed round the same gradient would be valid again; its sender resends it.
    if (round == rounds_.number() && !open_.contains(trainer->session)) return;
    const auto answer = rounds_.contribute(trainer->session, round, time_.now());
    REQUIRE(answer.contribution != Contribution::taken);
    REQUIRE_FALSE(answer.end);
  }

  void check(const std::optional<RoundEnd>& end) {
    if (end) finish(*end);
    REQUIRE(rounds_.contributions() == open_.size());
    REQUIRE(rounds_.number() == closed_);
    if (open_.empty()) {
      REQUIRE(rounds_.waitingFor().empty());
      return;
    }
    // A trainer that has contributed waits for a joined one, or for one to join, or for the timeout.
    const auto waitingFor = rounds_.waitingFor();
    const bool quorum = open_.size() >= rules_.quorum;
    REQUIRE((waitingFor.size() > (quorum ? rules_.backupTrainers : 0) || rounds_.joinsNeeded() > 0));
    REQUIRE((rounds_.joinsNeeded() == 0 || rules_.timeout || !rounds_.started()));
    for (const Awaited& awaited : waitingFor) {
      REQUIRE_FALSE(open_.contains(awaited.session));
      REQUIRE(awaited.since >= opened_);
      REQUIRE(awaited.since <= time_.now());
      REQUIRE(std::any_of(trainers_.begin(), trainers_.end(),
                          [&](const Step& one) { return one->live && one->session == awaited.session; }));
    }
    if (rules_.timeout && rounds_.started()) REQUIRE(time_.now() <= due());
    checkGrace();
  }

  void finish(const RoundEnd& end) {
    REQUIRE(end.round == closed_);  // each number closes once, in order
    REQUIRE(std::set<SessionId>(end.contributors.begin(), end.contributors.end()) == open_);
    REQUIRE(std::is_sorted(end.contributors.begin(), end.contributors.end()));
    accounted_ += end.contributors.size();
    const bool timeUp = rules_.timeout && rounds_.started() && time_.now() >= due();
    if (end.how == How::closed) {
      closed_++;
      REQUIRE(rounds_.started());
      if (end.missing.size() > rules_.backupTrainers) {
        // After a grace period that is over, else at the timeout.
        const TimePoint quorumAt = quorumAt_.value_or(time_.now());
        const bool graceOver = rules_.grace && time_.now() <= quorumAt + *rules_.grace;
        graceOver ? outOfGrace_++ : proceeded_++;
        REQUIRE((graceOver || (timeUp && rules_.proceedOnTimeout)));
        REQUIRE(end.contributors.size() >= rules_.quorum);
      } else {
        REQUIRE((end.contributors.size() >= rules_.quorum || rules_.grace));
      }
    } else {
      failed_++;
      if (end.how == How::timedOut) REQUIRE(timeUp);
      if (end.how == How::quorumLost && !timeUp) {
        REQUIRE((rounds_.present() == 0 || !rules_.timeout));
      }
    }
    open_.clear();
    quorumAt_.reset();
    for (const Step& trainer : trainers_) {
      if (!trainer->waiting || !trainer->live) continue;
      trainer->waiting = false;
      if (end.how == How::closed) trainer->stepsLeft--;
      // A rejected trainer gives up, or retries.
      if (end.how != How::closed && random_.oneIn(2)) {
        later(10, [this, trainer] { depart(trainer); });
      } else {
        later(10, [this, trainer] { pull(trainer); });
      }
    }
  }

  Random& random_;
  VirtualTime time_;
  const RoundRules rules_;
  SyncRounds rounds_;
  std::vector<Step> trainers_;
  std::set<SessionId> open_;           // trainers that have contributed to the open round
  TimePoint opened_{};                 // its first contribution
  TimePoint start_{};                  // when enough trainers were joined for the first time
  std::optional<TimePoint> quorumAt_;  // of the open round, under a grace rule
  uint64_t lastSession_ = 0, restarts_ = 0;
  uint64_t taken_ = 0, accounted_ = 0, closed_ = 0, failed_ = 0, late_ = 0, proceeded_ = 0,
           midRoundJoins_ = 0;
  uint64_t ahead_ = 0, outOfGrace_ = 0;
};

TEST_CASE("any schedule of joins, deaths and delays: no round twice, none lost, none that hangs") {
  uint64_t closed = 0, failed = 0, late = 0, proceeded = 0, midRoundJoins = 0, ahead = 0, outOfGrace = 0;
  testing::runSchedules(4000, [&](Random& random) {
    RoundsWorld world(random);
    world.run();
    closed += world.closed();
    failed += world.failed();
    late += world.late();
    proceeded += world.proceeded();
    midRoundJoins += world.midRoundJoins();
    ahead += world.ahead();
    outOfGrace += world.outOfGrace();
  });
  if (std::getenv("PSD_SIMULATION_SEED") != nullptr) return;
  CHECK(closed > 0);  // the schedules cover the cases under test
  CHECK(failed > 0);
  CHECK(late > 0);
  CHECK(proceeded > 0);
  CHECK(midRoundJoins > 0);
  CHECK(ahead > 0);
  CHECK(outOfGrace > 0);
}

}  // namespace
}  // namespace psd::rounds_simulation_test
