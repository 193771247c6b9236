// Gradients of a single fragment in a PushLedger. Whole ones: test/simulation/ledger_simulation_test.cc.

#include "server/push/push_ledger.h"

#include <memory>

#include "test/support/catch.h"

namespace psd::push_ledger_test {
namespace {

using Known = PushLedger::Known;

constexpr uint64_t kElements = 32;

/// Shards 0 and 2 belong to fragment 0, shard 1 to fragment 1.
class Pushes {
 public:
  explicit Pushes(bool fragments = true) : ledger_({0, 1, 0}, underWay_, {.fragments = fragments}) {}

  SliceHead slice(uint64_t step, uint32_t shard, uint32_t parts, uint64_t count = kElements) const {
    return {.step = Step{step}, .shard = shard, .count = count, .parts = parts, .total = kElements};
  }
  Result<PushLedger::Admitted> admit(const SliceHead& head) { return ledger_.admit(head, true); }
  /// Admits a slice that its policy answers immediately.
  StepPush& take(const SliceHead& head, PushOutcome outcome = PushOutcome::received) {
    auto admitted = admit(head);
    PSD_REQUIRE_OK(admitted);
    admitted->part->push.taken += head.count;
    const Result<PushAnswer> answer = PushAnswer{outcome, Version{1}};
    ledger_.answered(*admitted->step, head, answer);
    steps_.push_back(admitted->step);
    return *admitted->step;
  }
  PushLedger& ledger() { return ledger_; }
  const UpdatesInFlight& underWay() const { return underWay_; }

 private:
  UpdatesInFlight underWay_;
  PushLedger ledger_;
  std::vector<std::shared_ptr<StepPush>> steps_;
};

TEST_CASE("a later step of another fragment abandons nothing, one of the same fragment does") {
  Pushes pushes;
  pushes.take(pushes.slice(1, 0, 2, kElements / 2));
  CHECK(pushes.take(pushes.slice(2, 1, 1), PushOutcome::applied).complete);
  const auto rest = pushes.slice(1, 0, 2, kElements / 2);
  SliceHead second = rest;
  second.offset = kElements / 2;
  pushes.take(second);
  CHECK(pushes.take(pushes.slice(1, 2, 2)).complete);
  pushes.take(pushes.slice(3, 0, 2));
  pushes.take(pushes.slice(4, 2, 2));  // which abandons step 3
  const auto late = pushes.admit(pushes.slice(3, 2, 2));
  REQUIRE_FALSE(late.ok());
  CHECK(late.message() == "push of step 3, shard 2, offset 0: step 4 has already started");
}

TEST_CASE("a step of all shards abandons unfinished ones of fragments, and is abandoned by them") {
  Pushes pushes;
  pushes.take(pushes.slice(1, 0, 2));
  pushes.take(pushes.slice(2, 1, 3));
  CHECK_FALSE(pushes.admit(pushes.slice(1, 2, 2)).ok());
  CHECK(pushes.take(pushes.slice(3, 1, 1)).complete);
  CHECK_FALSE(pushes.admit(pushes.slice(2, 0, 3)).ok());
}

TEST_CASE("a round has a number that a version can have") {
  Pushes pushes;
  SliceHead slice = pushes.slice(1, 0, 2);
  slice.leadRound = (1ull << 53) + 1;
  const auto refused = pushes.admit(slice);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::badSlice);
  CHECK(refused.message().ends_with(
      "its round has the number 9007199254740993; the largest is 9007199254740992"));
  slice.leadRound--;
  CHECK(pushes.take(slice).parts[0]->push.leadRound == slice.leadRound);
}

TEST_CASE("a gradient has the parts of its fragment or of all, and keeps the kind it started as") {
  Pushes pushes;
  CHECK(
      pushes.admit(pushes.slice(1, 0, 1)).message() ==
      "push of step 1, shard 0, offset 0: the gradient has 1 parts; expected one per shard, 3, or 2 for its "
      "fragment");
  pushes.take(pushes.slice(1, 0, 2));
  CHECK(pushes.admit(pushes.slice(1, 1, 1)).message() ==
        "push of step 1, shard 1, offset 0: the step was started with other shards");
  CHECK_FALSE(pushes.admit(pushes.slice(1, 2, 3)).ok());
  Pushes without(false);
  CHECK(without.admit(without.slice(1, 0, 2)).message() ==
        "push of step 1, shard 0, offset 0: the gradient has 2 parts; expected one per shard, 3");
}

TEST_CASE("a trainer that is lost may push its unfinished fragment again") {
  Pushes pushes;
  pushes.take(pushes.slice(1, 0, 2));
  CHECK(pushes.take(pushes.slice(2, 1, 1)).complete);
  pushes.ledger().endSession();
  pushes.ledger().beginSession();
  CHECK(pushes.ledger().find(pushes.slice(1, 0, 2)).known == Known::nothing);
  CHECK(pushes.ledger().find(pushes.slice(2, 1, 1)).known == Known::undecided);
  pushes.take(pushes.slice(1, 0, 2));
  CHECK(pushes.take(pushes.slice(1, 2, 2)).complete);
  CHECK(pushes.underWay().arriving == 0);
}

}  // namespace
}  // namespace psd::push_ledger_test
