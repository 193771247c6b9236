// The policies that apply each push separately, with a log: the log holds what was applied, bounds what waits
// for the disk, and a push that some elements have already goes to the others.

#include <limits>
#include <optional>
#include <vector>

#include "test/contract/policy_trainer.h"
#include "test/support/forwarding_backend.h"

namespace psd::locked_log_test {
namespace {

using namespace testing;

constexpr uint64_t kElements = 4096;
const TrainerRef kTrainer{SessionId{1}, Rank{1}, 77};

/// A log that keeps the gradients it receives, and lets as much wait as the test sets. Owned by one thread.
class KeptLog final : public UpdateLog {
 public:
  explicit KeptLog(uint64_t roomBytes = uint64_t{1} << 40) : room_(ByteBudget::make(roomBytes)) {}

  kj::Promise<ByteBudget::Lease> space(uint64_t gradientBytes) override {
    if (auto lease = room_->tryTake(gradientBytes)) return kj::mv(*lease);
    return room_->take(gradientBytes);
  }
  uint64_t append(ShardId, const AppliedUpdate& update, ByteBudget::Lease space) override {
    std::vector<float>& values = gradients.emplace_back(update.gradient.size());
    update.gradient.copyTo(0, values);
    owned.push_back(update.owner != nullptr);
    rooms.push_back(std::move(space));
    return gradients.size();
  }
  uint64_t append(const BufferSet&, ByteBudget::Lease) override { return 0; }
  kj::Promise<void> whenDurable(uint64_t) override { return kj::READY_NOW; }

  const ByteBudget& budget() const { return *room_; }
  std::vector<std::vector<float>> gradients;
  std::vector<bool> owned;               ///< whether a log may keep the gradient in place
  std::vector<ByteBudget::Lease> rooms;  ///< of what is not durable

 private:
  const std::shared_ptr<ByteBudget> room_;
};

/// The memory that a trainer writes while the daemon reads it.
struct Ring {
  std::vector<float> values = std::vector<float>(kElements, 1.f);
  bool changes = false;
};

/// After a gradient was applied its trainer changes it.
class OverwrittenStorage final : public ForwardingStorage {
 public:
  OverwrittenStorage(std::unique_ptr<ShardStorage> inner, Ring& ring)
      : ForwardingStorage(std::move(inner)), ring_(ring) {}
  void applyChanged(Lane& lane, uint64_t offset, const Gradient& gradient, const GradientChange& change,
                    const UpdateScalars& update, Done done) override {
    ForwardingStorage::applyChanged(lane, offset, gradient, change, update, std::move(done));
    if (ring_.changes) std::fill(ring_.values.begin(), ring_.values.end(), 2.f);
  }

 private:
  Ring& ring_;
};

class OverwritingBackend final : public WrappingBackend {
 public:
  explicit OverwritingBackend(Ring& ring) : ring_(ring) {}

 protected:
  std::unique_ptr<ShardStorage> wrap(std::unique_ptr<ShardStorage> storage) override {
    return std::make_unique<OverwrittenStorage>(std::move(storage), ring_);
  }

 private:
  Ring& ring_;
};

/// One shard under a policy, with a log, and a joined trainer.
struct Fixture {
  explicit Fixture(const char* policy, uint64_t roomBytes = uint64_t{1} << 40)
      : served(std::make_shared<OverwritingBackend>(ring), entryOf(policy), subtracting(), kElements, 1, "{}",
               true),
        log(std::make_shared<KeptLog>(roomBytes)),
        lanes(served.store->makeLanes()) {
    shard().setLog(log);
    loop.wait(served.policy->join(kTrainer));
  }

  Shard& shard() { return served.shard(0); }
  std::vector<float> weights() {
    std::vector<float> values;
    shard().storage().read(*lanes[0], 0, kElements, [&](Result<ReadView> view) {
      values.assign(view->values.begin(), view->values.end());
    });
    return values;
  }
  ShardPush& begin(uint64_t step) {
    ShardPush& push = *pushes.emplace_back(std::make_unique<ShardPush>());
    push.trainer = kTrainer;
    push.step = Step{step};
    push.samples = 1;
    push.total = kElements;
    return push;
  }
  kj::Promise<Result<PushAnswer>> start(ShardPush& push, uint64_t offset, Gradient gradient) {
    push.arrived.add(offset, gradient.size());
    return served.policy->push(shard(), *lanes[0], push, offset, gradient).eagerlyEvaluate(nullptr);
  }
  Result<PushAnswer> push(uint64_t step, Gradient gradient) {
    return loop.wait(start(begin(step), 0, gradient));
  }

  Ring ring;
  TestLoop loop;
  ServedStore served;
  std::shared_ptr<KeptLog> log;
  Lanes lanes;
  std::vector<std::unique_ptr<ShardPush>> pushes;
};

TEST_CASE("the log gets what was applied, though the trainer keeps writing to its gradient") {
  Fixture fixture(GENERATE("hogwild", "locked", "bounded_staleness", "easgd"));
  fixture.ring.changes = true;
  const auto answer = fixture.push(1, Gradient::inSharedMemory(fixture.ring.values));
  PSD_REQUIRE_OK(answer);
  CHECK(answer->applied());
  REQUIRE(fixture.log->gradients.size() == 1);
  std::vector<float> applied = fixture.weights();
  for (float& value : applied) value = -value;
  CHECK_FALSE(firstDifference(fixture.log->gradients[0], applied));
}

TEST_CASE("a gradient that was gathered goes to the log in place, and one in a message as a copy") {
  Fixture fixture(GENERATE("hogwild", "locked", "bounded_staleness"));
  const std::vector<float> ones(kElements, 1.f);
  const std::span<const float> values = ones;
  ShardPush& push = fixture.begin(1);
  PSD_REQUIRE_OK(fixture.loop.wait(fixture.start(push, 0, values.first(kElements / 2))));
  PSD_REQUIRE_OK(fixture.loop.wait(fixture.start(push, kElements / 2, values.subspan(kElements / 2))));
  PSD_REQUIRE_OK(fixture.push(2, values));
  CHECK(fixture.log->owned == std::vector{true, false});
  CHECK(fixture.log->gradients == std::vector(2, ones));
}

TEST_CASE("the combined gradient of a round goes to the log in place") {
  Fixture fixture("sync");
  const std::vector<float> ones(kElements, 1.f);
  PSD_REQUIRE_OK(fixture.push(1, std::span<const float>(ones)));
  CHECK(fixture.log->owned == std::vector{true});
  CHECK(fixture.log->gradients == std::vector(1, ones));
}

TEST_CASE("a value that became NaN in shared memory after it was checked is rejected") {
  const bool slices = GENERATE(false, true);
  Fixture fixture(GENERATE("hogwild", "locked"));
  fixture.ring.values[kElements - 1] = std::numeric_limits<float>::quiet_NaN();
  const std::span<const float> values = fixture.ring.values;
  ShardPush& push = fixture.begin(1);
  const uint64_t first = slices ? kElements / 2 : 0;
  if (slices)
    PSD_REQUIRE_OK(fixture.loop.wait(fixture.start(push, 0, Gradient::inSharedMemory(values.first(first)))));
  const auto refused =
      fixture.loop.wait(fixture.start(push, first, Gradient::inSharedMemory(values.subspan(first))));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::nonFinite);
  CHECK(fixture.shard().version() == Version{0});
  CHECK(allAre(fixture.weights(), 0));
  // It may be pushed again.
  fixture.ring.values[kElements - 1] = 1;
  const auto applied =
      fixture.loop.wait(fixture.start(push, first, Gradient::inSharedMemory(values.subspan(first))));
  PSD_REQUIRE_OK(applied);
  CHECK(applied->applied());
}

TEST_CASE(
    "updates beyond the limit of pending log bytes wait for space, and nothing is gathered behind them") {
  constexpr uint64_t kBytes = kElements * sizeof(float);
  Fixture fixture(GENERATE("hogwild", "locked"), kBytes);
  const std::vector<float> ones(kElements, 1.f);
  PSD_REQUIRE_OK(fixture.push(1, std::span(ones)));
  auto second = fixture.start(fixture.begin(2), 0, std::span(ones));
  CHECK_FALSE(fixture.loop.resolved(second));
  CHECK(fixture.shard().version() == Version{1});
  ShardPush& third = fixture.begin(3);
  auto half = fixture.start(third, 0, std::span(ones).first(kElements / 2));
  CHECK_FALSE(fixture.loop.resolved(half));
  CHECK(third.gathered.empty());
  fixture.log->rooms.clear();  // everything is durable
  PSD_REQUIRE_OK(fixture.loop.wait(kj::mv(second)));
  CHECK(fixture.shard().version() == Version{2});
  PSD_REQUIRE_OK(fixture.loop.wait(kj::mv(half)));
  CHECK_FALSE(third.gathered.empty());
  CHECK(fixture.log->budget().used() <= kBytes);
}

TEST_CASE("a trainer's pushes keep their order if one waits for space and the next finds some") {
  Fixture fixture(GENERATE("hogwild", "locked"), 2 * kElements * sizeof(float));
  const auto all = [](float value) { return std::vector<float>(kElements, value); };
  const std::vector<float> first = all(1), second = all(2), third = all(3), fourth = all(4);
  PSD_REQUIRE_OK(fixture.push(1, std::span(first)));
  PSD_REQUIRE_OK(fixture.push(2, std::span(second)));
  auto waiting = fixture.start(fixture.begin(3), 0, std::span(third));
  CHECK_FALSE(fixture.loop.resolved(waiting));
  fixture.log->rooms.clear();  // there is space for both, but the one that waited was not resumed yet
  auto next = fixture.start(fixture.begin(4), 0, std::span(fourth));
  PSD_REQUIRE_OK(fixture.loop.wait(kj::mv(waiting)));
  PSD_REQUIRE_OK(fixture.loop.wait(kj::mv(next)));
  REQUIRE(fixture.log->gradients.size() == 4);
  CHECK(fixture.log->gradients[2].front() == 3);
  CHECK(fixture.log->gradients[3].front() == 4);
  CHECK(fixture.shard().pushed().ranges().front().pushes.front().step == Step{4});
}

TEST_CASE("a push that some elements have already is applied to the others alone") {
  const int way = GENERATE(0, 1, 2);  // whole, in slices, encoded
  INFO(way);
  Fixture fixture(GENERATE("hogwild", "locked"));
  const AppliedPush has{kTrainer.rank, kTrainer.incarnation, Step{5}, Version{5}, 0, 1};
  const AppliedPush lacks{kTrainer.rank, kTrainer.incarnation, Step{4}, Version{4}};
  fixture.shard().restore(Version{5}, PushedRanges({{0, 1024, {has}}, {1024, 3072, {lacks}}}));
  REQUIRE(fixture.shard().divided());
  const std::vector<float> ones(kElements, -1.f);
  const auto codec = makeCodec("fp16");
  PSD_REQUIRE_OK(codec);
  std::vector<uint64_t> encoded((*codec)->encodedBytes(kElements) / 8 + 1);
  auto* const bytes = reinterpret_cast<std::byte*>(encoded.data());
  PSD_REQUIRE_OK((*codec)->encode(ones, 1, bytes));
  ShardPush& push = fixture.begin(5);
  if (way == 1) PSD_REQUIRE_OK(fixture.loop.wait(fixture.start(push, 2048, std::span(ones).subspan(2048))));
  const Gradient rest = way == 0   ? Gradient(std::span<const float>(ones))
                        : way == 1 ? Gradient(std::span<const float>(ones).first(2048))
                                   : Gradient(**codec, {bytes, (*codec)->encodedBytes(kElements)}, kElements);
  const auto answer = fixture.loop.wait(fixture.start(push, 0, rest));
  PSD_REQUIRE_OK(answer);
  CHECK(answer->applied());
  const std::vector<float> weights = fixture.weights();
  CHECK(allAre(std::span(weights).first(1024), 0));
  CHECK(allAre(std::span(weights).subspan(1024), 1));
  CHECK_FALSE(fixture.shard().divided());
  PSD_REQUIRE_OK(fixture.push(6, std::span(ones)));
  const std::vector<float> after = fixture.weights();
  CHECK(allAre(std::span(after).first(1024), 1));
  CHECK(fixture.shard().version() == Version{7});
}

TEST_CASE("under recorded hogwild pushes are applied concurrently, and a copy of the shard excludes them") {
  Fixture fixture("hogwild");
  const std::vector<float> ones(kElements, -1.f);
  std::optional<ShardLock::Guard> applying = fixture.loop.wait(fixture.shard().lock().acquireShared());
  const auto beside = fixture.push(1, std::span(ones));
  PSD_REQUIRE_OK(beside);
  CHECK(beside->version == Version{1});
  auto copying = fixture.shard().lock().acquire();
  CHECK_FALSE(fixture.loop.resolved(copying));
  auto after = fixture.start(fixture.begin(2), 0, std::span(ones));
  CHECK_FALSE(fixture.loop.resolved(after));
  applying.reset();
  {
    const ShardLock::Guard copy = fixture.loop.wait(kj::mv(copying));
    CHECK_FALSE(fixture.loop.resolved(after));
    CHECK(allAre(fixture.weights(), 1));
    CHECK(fixture.shard().pushed().ranges().front().pushes.front().step == Step{1});
  }
  PSD_REQUIRE_OK(fixture.loop.wait(kj::mv(after)));
  CHECK(fixture.shard().version() == Version{2});
}

}  // namespace
}  // namespace psd::locked_log_test
