#include "server/membership/leases.h"

#include <map>
#include <vector>

#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::leases_test {
namespace {

using Ms = Leases::Milliseconds;
using Sessions = std::vector<SessionId>;

constexpr SessionId kOne{1}, kTwo{2};

/// A clock that ticks often enough that leases see no standstill.
class Ticking {
 public:
  explicit Ticking(Leases& leases) : leases_(leases) { leases_.advance(now_); }
  void pass(Ms time) {
    for (const Ms end = now_ + time; now_ < end;) {
      now_ = std::min(end, now_ + leases_.interval());
      leases_.advance(now_);
    }
  }
  /// The daemon is stalled for `time`.
  void jump(Ms time) { leases_.advance(now_ += time); }

 private:
  Leases& leases_;
  Ms now_{123'456};  // from any beginning
};

TEST_CASE("a lease expires without heartbeats, and is full again after one") {
  Leases leases({Ms(1000), Ms(300)});
  Ticking clock(leases);
  leases.grant(kOne);
  clock.pass(Ms(400));
  leases.grant(kTwo);
  CHECK(leases.left(kOne) == Ms(600));
  CHECK(leases.left(kTwo) == Ms(1000));
  clock.pass(Ms(599));
  CHECK(leases.expired().empty());
  clock.pass(Ms(1));
  CHECK(leases.expired() == Sessions{kOne});
  CHECK(leases.left(kOne) == Ms(0));
  leases.release(kOne);
  leases.grant(kTwo);
  clock.pass(Ms(999));
  CHECK(leases.expired().empty());
  clock.pass(Ms(1));
  CHECK(leases.expired() == Sessions{kTwo});
}

TEST_CASE("a closed connection leaves the grace period, counted once, and a return restores the lease") {
  Leases leases({Ms(1000), Ms(300)});
  Ticking clock(leases);
  leases.grant(kOne);
  CHECK(leases.connected(kOne));
  leases.disconnected(kOne);
  CHECK_FALSE(leases.connected(kOne));
  clock.pass(Ms(200));
  leases.disconnected(kOne);
  CHECK(leases.left(kOne) == Ms(100));
  leases.grant(kOne);
  CHECK(leases.connected(kOne));
  CHECK(leases.left(kOne) == Ms(1000));
  leases.disconnected(kOne);
  clock.pass(Ms(300));
  CHECK(leases.expired() == Sessions{kOne});
}

TEST_CASE("without a grace period a trainer is lost with its connection") {
  Leases leases({Ms(1000), Ms(0)});
  leases.grant(kOne);
  leases.disconnected(kOne);
  CHECK(leases.expired() == Sessions{kOne});
  leases.disconnected(kTwo);  // an unknown one
  CHECK(leases.expired() == Sessions{kOne});
}

TEST_CASE("time in which the daemon is stalled expires no lease") {
  Leases leases({Ms(1000), Ms(300)});
  Ticking clock(leases);
  leases.grant(kOne);
  clock.jump(Ms(3'600'000));
  CHECK(leases.expired().empty());
  // A stall counts as a few intervals, so that leases still expire if the daemon always ticks late.
  CHECK(leases.left(kOne) == Ms(1000) - 4 * leases.interval());
  clock.jump(Ms(-500));
  CHECK(leases.left(kOne) == Ms(1000) - 4 * leases.interval());
}

TEST_CASE("it checks several times within the shorter of lease and grace period") {
  CHECK(Leases({Ms(10'000), Ms(2'000)}).interval() == Ms(250));
  CHECK(Leases({Ms(800), Ms(2'000)}).interval() == Ms(100));
  CHECK(Leases({Ms(10'000), Ms(80)}).interval() == Ms(10));
  CHECK(Leases({Ms(10'000), Ms(0)}).interval() == Ms(250));
}

TEST_CASE("random lives: exactly those expire whose lease or grace period is over") {
  for (uint32_t seed = 1; seed <= 50; seed++) {
    INFO("seed " << seed);
    testing::Random random(seed);
    Leases leases({Ms(1000), Ms(300)});
    leases.advance(Ms(0));
    std::map<SessionId, uint64_t> ends;
    std::map<SessionId, bool> connected;
    uint64_t now = 0;
    for (int i = 0; i < 400; i++) {
      now += random.below(static_cast<uint32_t>(leases.interval().count()));
      leases.advance(Ms(now));
      const SessionId session{random.below(5)};
      const uint32_t what = random.below(10);
      if (what < 6) {
        leases.grant(session);
        ends[session] = now + 1000;
        connected[session] = true;
      } else if (what < 9) {
        leases.disconnected(session);
        if (ends.count(session) && connected[session]) ends[session] = now + 300;
        connected[session] = false;
      } else {
        leases.release(session);
        ends.erase(session);
      }
      Sessions expected;
      for (const auto& [id, end] : ends) {
        if (end <= now) expected.push_back(id);
      }
      REQUIRE(leases.expired() == expected);
      testing::requireInvariants(leases);
    }
  }
}

}  // namespace
}  // namespace psd::leases_test
