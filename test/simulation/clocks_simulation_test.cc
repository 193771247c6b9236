#include <algorithm>
#include <memory>
#include <vector>

#include "server/policy/step_clocks.h"
#include "test/simulation/schedules.h"

namespace psd::clocks_simulation_test {
namespace {

using std::chrono::milliseconds;
using testing::Random;
using testing::VirtualTime;

/// Trainers of different speed that read, compute and step, join, freeze and die under a bound, compared with
/// clocks counted naively.
class ClocksWorld {
 public:
  explicit ClocksWorld(Random& random) : random_(random), bound_(random_.below(5)), clocks_(bound_) {
    const uint64_t trainers = random_.between(1, 7);
    for (uint64_t i = 0; i < trainers; i++) later(random_.oneIn(3) ? 400 : 5, [this] { join(); });
  }

  void run() {
    REQUIRE(time_.run(200'000, [this] { testing::requireInvariants(clocks_); }));
    for (const auto& trainer : trainers_) {
      INFO("session " << trainer->session.value);
      CHECK_FALSE(trainer->live);  // no event is left, so no trainer may be left waiting
    }
    CHECK(clocks_.present() == 0);
    CHECK(clocks_.waits().empty());
  }

  uint64_t waited() const { return waited_; }
  uint64_t releasedByDeath() const { return releasedByDeath_; }

 private:
  struct Trainer {
    SessionId session;
    uint64_t clock;
    uint64_t stepsLeft;
    uint64_t slowness;
    bool live = true;
    bool waiting = false;
    TimePoint since{};
  };
  using One = std::shared_ptr<Trainer>;

  void later(uint64_t msMax, std::function<void()> event) {
    time_.after(milliseconds(random_.between(0, msMax)), std::move(event));
  }

  std::vector<One> live() const {
    std::vector<One> found;
    std::copy_if(trainers_.begin(), trainers_.end(), std::back_inserter(found),
                 [](const One& one) { return one->live; });
    return found;
  }

  uint64_t slowest() const {
    uint64_t least = UINT64_MAX;
    for (const One& one : live()) least = std::min(least, one->clock);
    return least;
  }

  void join() {
    const auto present = live();
    const uint64_t begin = present.empty() ? lastSlowest_ : slowest();
    auto trainer = std::make_shared<Trainer>(Trainer{SessionId{++lastSession_}, begin, random_.between(1, 25),
                                                     random_.oneIn(4) ? uint64_t{100} : 10});
    trainers_.push_back(trainer);
    clocks_.join(trainer->session);
    REQUIRE(clocks_.clock(trainer->session) == begin);
    if (random_.oneIn(5)) later(500, [this, trainer] { depart(trainer); });
    read(trainer);
  }

  void depart(const One& trainer) {
    if (!trainer->live) return;
    trainer->live = false;
    trainer->waiting = false;
    const auto released = clocks_.leave(trainer->session);
    releasedByDeath_ += released.size();
    resume(released);
    if (restarts_ < 10 && random_.oneIn(3)) {
      restarts_++;
      later(300, [this] { join(); });
    }
  }

  void read(const One& trainer) {
    if (!trainer->live) return;
    if (trainer->stepsLeft == 0) return depart(trainer);
    const bool may = trainer->clock - slowest() <= bound_;
    REQUIRE(clocks_.read(trainer->session, time_.now()) == may);
    if (may) {
      compute(trainer);
    } else {
      waited_++;
      trainer->waiting = true;
      trainer->since = time_.now();
    }
    check();
  }

  void compute(const One& trainer) {
    REQUIRE(trainer->clock - slowest() <= bound_);  // no live trainer reads ahead of the bound
    if (random_.oneIn(60)) {                        // frozen, and its lease expires
      return time_.after(milliseconds(1000), [this, trainer] { depart(trainer); });
    }
    later(trainer->slowness, [this, trainer] { finishStep(trainer); });
  }

  void finishStep(const One& trainer) {
    if (!trainer->live) return;
    trainer->clock++;
    trainer->stepsLeft--;
    resume(clocks_.advance(trainer->session));
    later(5, [this, trainer] { read(trainer); });
  }

  void resume(const StepClocks::Released& released) {
    REQUIRE(std::is_sorted(released.begin(), released.end()));
    for (SessionId session : released) {
      const auto found = std::find_if(trainers_.begin(), trainers_.end(),
                                      [&](const One& one) { return one->session == session; });
      REQUIRE(found != trainers_.end());
      REQUIRE(((*found)->live && (*found)->waiting));
      (*found)->waiting = false;
      compute(*found);
    }
    check();
  }

  void check() {
    if (!live().empty()) lastSlowest_ = slowest();
    REQUIRE(clocks_.slowest() == lastSlowest_);
    const auto waits = clocks_.waits();
    size_t waiting = 0;
    for (const One& one : live()) {
      REQUIRE(clocks_.clock(one->session) == one->clock);
      if (!one->waiting) continue;
      waiting++;
      REQUIRE(one->clock - slowest() > bound_);  // a trainer that may read has been released
      const auto wait = std::find_if(waits.begin(), waits.end(),
                                     [&](const auto& entry) { return entry.session == one->session; });
      REQUIRE(wait != waits.end());
      REQUIRE(wait->since == one->since);
      REQUIRE(wait->ahead == one->clock - slowest());
      REQUIRE_FALSE(wait->slowest.empty());
    }
    REQUIRE(waits.size() == waiting);
  }

  Random& random_;
  VirtualTime time_;
  const uint64_t bound_;
  StepClocks clocks_;
  std::vector<One> trainers_;
  uint64_t lastSession_ = 0, restarts_ = 0, lastSlowest_ = 0, waited_ = 0, releasedByDeath_ = 0;
};

TEST_CASE(
    "any schedule of joins, deaths and delays: no trainer reads ahead of the bound, none waits forever") {
  uint64_t waited = 0, releasedByDeath = 0;
  testing::runSchedules(3000, [&](Random& random) {
    ClocksWorld world(random);
    world.run();
    waited += world.waited();
    releasedByDeath += world.releasedByDeath();
  });
  if (std::getenv("PSD_SIMULATION_SEED") != nullptr) return;
  CHECK(waited > 0);  // the schedules cover the cases under test
  CHECK(releasedByDeath > 0);
}

}  // namespace
}  // namespace psd::clocks_simulation_test
