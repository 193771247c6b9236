#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "server/policy/modifiers.h"
#include "server/policy/pulled_weights.h"
#include "server/policy/step_clocks.h"
#include "test/simulation/schedules.h"

namespace psd::staleness_simulation_test {
namespace {

using std::chrono::milliseconds;
using testing::Random;
using testing::VirtualTime;

/// The kind of a schedule.
enum class ScheduleKind {
  random,  ///< trainers of any speed, some of which join late, leave or read more often than they push
  worst,   ///< the first runs as far ahead as it may, then stalls until no other can continue
};

/// Trainers that read shard by shard, compute and push shard by shard under a bound, as under
/// bounded_staleness, and their expected staleness, counted from what each of them did.
class StalenessWorld {
 public:
  StalenessWorld(Random& random, ScheduleKind course)
      : random_(random),
        course_(course),
        bound_(random_.below(5)),
        rule_(drawRule()),
        clocks_(bound_),
        shards_(course == ScheduleKind::worst ? 1 : random_.between(1, 3)) {
    trainers_ = random_.between(2, 6);
    for (uint64_t i = 0; i < trainers_; i++) {
      const bool late = course_ == ScheduleKind::random && random_.oneIn(4);
      time_.after(milliseconds(late ? random_.between(0, 400) : 0), [this] { join(); });
    }
  }

  void run() {
    REQUIRE(time_.run(200'000, [this] { testing::requireInvariants(clocks_); }));
    CHECK(clocks_.present() == 0);
    for (const auto& snapshot : snapshots_) REQUIRE(snapshot.expired());  // no trainer is left to need them
  }

  /// The maximum for a gradient while the same trainers are joined.
  uint64_t most() const { return (2 * bound_ + 1) * (trainers_ - 1); }
  uint64_t stalest() const { return stalest_; }
  uint64_t dropped() const { return dropped_; }
  uint64_t slowed() const { return slowed_; }
  uint64_t remembered() const { return remembered_; }
  uint64_t forgotten() const { return forgotten_; }

 private:
  /// The trainer of each update of a shard, by version.
  using History = std::vector<SessionId>;

  struct Trainer {
    SessionId session;
    uint64_t stepsLeft;
    bool first;
    bool live = true;
    size_t next = 0;                         // shard to read
    std::vector<uint64_t> basis;             // of each shard
    std::vector<uint64_t> departuresBefore;  // departures before each shard was read
    std::vector<std::set<uint64_t>> pulled;  // versions of each shard
    size_t pushed = 0;                       // shards that have this step
  };
  using One = std::shared_ptr<Trainer>;

  StalenessRule drawRule() {
    StalenessRule rule;
    constexpr StalenessRule::Rate kRates[] = {StalenessRule::Rate::none, StalenessRule::Rate::inverse,
                                              StalenessRule::Rate::damped};
    rule.rate = kRates[random_.below(3)];
    // Dropping must make no other gradients older: the worst course drops nothing.
    if (course_ == ScheduleKind::random && random_.oneIn(4)) rule.max = random_.below(6);
    return rule;
  }

  void after(uint64_t ms, std::function<void()> event) { time_.after(milliseconds(ms), std::move(event)); }

  void join() {
    auto trainer = std::make_shared<Trainer>();
    trainer->session = SessionId{++lastSession_};
    trainer->first = lastSession_ == 1;
    trainer->stepsLeft = course_ == ScheduleKind::worst ? 40 : random_.between(1, 20);
    trainer->basis.resize(shards_.size());
    trainer->departuresBefore.resize(shards_.size());
    trainer->pulled.resize(shards_.size());
    live_.push_back(trainer);
    clocks_.join(trainer->session);
    pulled_.admit(trainer->session);
    if (course_ == ScheduleKind::random && random_.oneIn(5)) {
      after(random_.between(0, 300), [this, trainer] { leave(trainer); });
    }
    read(trainer);
  }

  void leave(const One& trainer) {
    if (!trainer->live) return;
    trainer->live = false;
    left_++;
    std::erase(live_, trainer);
    pulled_.forget(trainer->session);
    resume(clocks_.leave(trainer->session));
  }

  void resume(const StepClocks::Released& released) {
    for (SessionId session : released) {
      const auto found =
          std::find_if(live_.begin(), live_.end(), [&](const One& one) { return one->session == session; });
      REQUIRE(found != live_.end());
      after(0, [this, trainer = *found] { read(trainer); });
    }
  }

  /// The next shard, until all are read.
  void read(const One& trainer) {
    if (!trainer->live) return;
    if (trainer->stepsLeft == 0) return leave(trainer);
    const bool may = clocks_.read(trainer->session, time_.now());
    REQUIRE((may || trainer->next == 0));  // a trainer that may start to read may continue
    if (!may) return;
    const size_t shard = trainer->next++;
    trainer->basis[shard] = shards_[shard].size();
    trainer->departuresBefore[shard] = left_;
    keep(*trainer, shard);
    if (trainer->next < shards_.size()) return after(random_.below(3), [this, trainer] { read(trainer); });
    trainer->next = 0;
    if (course_ == ScheduleKind::random && random_.oneIn(6)) {  // again before it computes
      return after(random_.below(20), [this, trainer] { read(trainer); });
    }
    // The others step together, so that all of them are as slow as the slowest when the first one reads.
    const bool stands = trainer->first && trainer->stepsLeft % 13 == 0;
    const uint64_t ms = course_ == ScheduleKind::worst
                            ? (!trainer->first ? 10
                               : stands        ? 1000
                                               : 0)
                            : (random_.oneIn(4) ? random_.below(150) : random_.below(5));
    after(ms, [this, trainer] { push(trainer); });
  }

  void push(const One& trainer) {
    trainer->pushed = 0;
    std::vector<size_t> order(shards_.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_.engine());
    for (size_t shard : order) {
      after(course_ == ScheduleKind::worst ? 0 : random_.below(5),
            [this, trainer, shard] { pushShard(trainer, shard); });
    }
  }

  void pushShard(const One& trainer, size_t shard) {
    if (!trainer->live) return;
    const uint64_t basis = trainer->basis[shard];
    History& history = shards_[shard];
    const uint64_t staleness = history.size() - basis;
    stalest_ = std::max(stalest_, staleness);
    // Each of the others that was joined meanwhile has made at most this number.
    REQUIRE(staleness <= (2 * bound_ + 1) * othersSince(*trainer, shard));
    for (const One& other : live_) {
      const auto made = static_cast<uint64_t>(
          std::count(history.begin() + static_cast<ptrdiff_t>(basis), history.end(), other->session));
      REQUIRE(made <= (other == trainer ? 0 : 2 * bound_ + 1));
    }
    find(*trainer, shard);
    if (rule_.tooOld(staleness)) {
      REQUIRE(staleness > *rule_.max);
      dropped_++;
    } else {
      REQUIRE((!rule_.max || staleness <= *rule_.max));
      checkRate(staleness);
      history.push_back(trainer->session);
    }
    if (++trainer->pushed < shards_.size()) return;
    trainer->stepsLeft--;
    resume(clocks_.advance(trainer->session));
    after(0, [this, trainer] { read(trainer); });
  }

  /// Other trainers that were joined at some time since the trainer read the shard.
  uint64_t othersSince(const Trainer& trainer, size_t shard) const {
    return left_ - trainer.departuresBefore[shard] + live_.size() - 1;
  }

  void checkRate(uint64_t staleness) {
    const double factor = rule_.factor(staleness);
    REQUIRE(factor > 0);
    REQUIRE(factor <= 1);
    if (staleness == 0 || rule_.rate == StalenessRule::Rate::none) REQUIRE(factor == 1);
    REQUIRE(rule_.factor(staleness + 1) <= factor);
    slowed_ += factor < 1;
  }

  /// Records what the trainer pulled of the shard now.
  void keep(Trainer& trainer, size_t shard) {
    auto snapshot = std::make_shared<const ShardSnapshot>(ShardSnapshot{Version{trainer.basis[shard]}, {}});
    snapshots_.push_back(snapshot);
    pulled_.note(trainer.session, ShardId{static_cast<uint32_t>(shard)}, std::move(snapshot));
    trainer.pulled[shard].insert(trainer.basis[shard]);
  }

  /// The version that it computed from is kept, since it is the newest that it pulled; an older one is, if it
  /// is among the newest and was not superseded.
  void find(Trainer& trainer, size_t shard) {
    const ShardId id{static_cast<uint32_t>(shard)};
    auto& versions = trainer.pulled[shard];
    while (versions.size() > PulledWeights::kKept) versions.erase(versions.begin());
    const uint64_t older = trainer.basis[shard] - std::min<uint64_t>(trainer.basis[shard], random_.below(8));
    for (const uint64_t version : {older, trainer.basis[shard]}) {
      const auto found = pulled_.find(trainer.session, id, Version{version});
      REQUIRE((found != nullptr) == versions.contains(version));
      if (found) REQUIRE(found->version == Version{version});
      versions.erase(versions.begin(), versions.lower_bound(version));
      (found ? remembered_ : forgotten_)++;
    }
    REQUIRE(versions.contains(trainer.basis[shard]));
  }

  Random& random_;
  VirtualTime time_;
  const ScheduleKind course_;
  const uint64_t bound_;
  const StalenessRule rule_;
  StepClocks clocks_;
  PulledWeights pulled_;
  std::vector<History> shards_;
  std::vector<One> live_;
  std::vector<std::weak_ptr<const ShardSnapshot>> snapshots_;
  uint64_t trainers_ = 0, left_ = 0, lastSession_ = 0;
  uint64_t stalest_ = 0, dropped_ = 0, slowed_ = 0, remembered_ = 0, forgotten_ = 0;
};

TEST_CASE(
    "any schedule of reads and pushes: under a bound no gradient exceeds the staleness that it allows") {
  uint64_t stale = 0, dropped = 0, slowed = 0, remembered = 0, forgotten = 0;
  testing::runSchedules(2000, [&](Random& random) {
    StalenessWorld world(random, ScheduleKind::random);
    world.run();
    stale += world.stalest() > 0;
    dropped += world.dropped();
    slowed += world.slowed();
    remembered += world.remembered();
    forgotten += world.forgotten();
  });
  if (std::getenv("PSD_SIMULATION_SEED") != nullptr) return;
  CHECK(stale > 0);  // the schedules cover the cases under test
  CHECK(dropped > 0);
  CHECK(slowed > 0);
  CHECK(remembered > 0);
  CHECK(forgotten > 0);
}

TEST_CASE(
    "the staleness that a bound allows is reached and not exceeded: 2 · bound + 1 of each other trainer") {
  testing::runSchedules(200, [&](Random& random) {
    // A reader that is `bound` ahead of all others sees none of the steps that they make until they are
    // `bound` + 1 ahead of it.
    StalenessWorld world(random, ScheduleKind::worst);
    world.run();
    CHECK(world.stalest() == world.most());
  });
}

}  // namespace
}  // namespace psd::staleness_simulation_test
