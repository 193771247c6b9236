// Gradients of one fragment alone in a PushLedger. Whole ones: test/simulation/ledger_simulation_test.cc.

#include "server/push/push_ledger.h"

#include <memory>

#include "test/support/catch.h"

namespace psd::push_ledger_test {
namespace {

using Known = PushLedger::Known;

constexpr uint64_t kElements = 32;

/// Shards 0 and 2 are of fragment 0, shard 1 is of fragment 1.
class Pushes {
 public:
  explicit Pushes(bool fragments = true) : ledger_({0, 1, 0}, underWay_, {.fragments = fragments}) {}

  SliceHead slice(uint64_t step, uint32_t shard, uint32_t parts, uint64_t count = kElements) const {
    return {.step = Step{step}, .shard = shard, .count = count, .parts = parts, .total = kElements};
  }
  Result<PushLedger::Admitted> admit(const SliceHead& head) { return ledger_.admit(head, true); }
  /// Admits a slice that its policy answers at once.
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
  const UpdatesUnderWay& underWay() const { return underWay_; }

 private:
  UpdatesUnderWay underWay_;
  PushLedger ledger_;
  std::vector<std::shared_ptr<StepPush>> steps_;
};

TEST_CASE("a later step of another fragment gives nothing up, one of the same fragment does") {
  Pushes pushes;
  pushes.take(pushes.slice(1, 0, 2, kElements / 2));
  CHECK(pushes.take(pushes.slice(2, 1, 1), PushOutcome::applied).complete);
  const auto rest = pushes.slice(1, 0, 2, kElements / 2);
  SliceHead second = rest;
  second.offset = kElements / 2;
  pushes.take(second);
  CHECK(pushes.take(pushes.slice(1, 2, 2)).complete);
  pushes.take(pushes.slice(3, 0, 2));
  pushes.take(pushes.slice(4, 2, 2));  // which gives up step 3
  const auto late = pushes.admit(pushes.slice(3, 2, 2));
  REQUIRE_FALSE(late.ok());
  CHECK(late.message() == "push of step 3, shard 2, from 0 on: step 4 has begun already");
}

TEST_CASE("a step of all shards gives up unfinished ones of fragments, and is given up by them") {
  Pushes pushes;
  pushes.take(pushes.slice(1, 0, 2));
  pushes.take(pushes.slice(2, 1, 3));
  CHECK_FALSE(pushes.admit(pushes.slice(1, 2, 2)).ok());
  CHECK(pushes.take(pushes.slice(3, 1, 1)).complete);
  CHECK_FALSE(pushes.admit(pushes.slice(2, 0, 3)).ok());
}

TEST_CASE("a gradient has the parts of its fragment or of all, and stays what it began as") {
  Pushes pushes;
  CHECK(
      pushes.admit(pushes.slice(1, 0, 1)).message() ==
      "push of step 1, shard 0, from 0 on: a gradient of 1 parts; it has one of each shard, which are 3, or "
      "of its fragment 2");
  pushes.take(pushes.slice(1, 0, 2));
  CHECK(pushes.admit(pushes.slice(1, 1, 1)).message() ==
        "push of step 1, shard 1, from 0 on: the step has begun with other shards");
  CHECK_FALSE(pushes.admit(pushes.slice(1, 2, 3)).ok());
  Pushes without(false);
  CHECK(without.admit(without.slice(1, 0, 2)).message() ==
        "push of step 1, shard 0, from 0 on: a gradient of 2 parts; it has one of each shard, which are 3");
}

TEST_CASE("a trainer that is lost may push its unfinished fragment anew") {
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
