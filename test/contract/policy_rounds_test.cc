// Promises of policies that work by rounds (PolicyTraits::rounds).

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <memory>
#include <vector>

#include "test/contract/policy_trainer.h"

namespace psd::policy_rounds_test {
namespace {

using testing::allAre;
using testing::firstDifference;
using testing::PolicyTrainer;
using testing::Random;
using testing::runOnThreads;
using testing::ServedStore;
using testing::subtracting;
using testing::TestDevice;
using testing::TestLoop;

constexpr uint64_t kElements = 1000;
constexpr uint32_t kShards = 3;

/// Except the one under which one trainer contributes for all; that is tested in policy_averages_test.cc.
std::vector<PolicyEntry> roundPolicies() {
  std::vector<PolicyEntry> found;
  for (const PolicyEntry& entry : kPolicyList) {
    if (entry.traits.rounds && entry.type != "allreduce") found.push_back(entry);
  }
  REQUIRE_FALSE(found.empty());
  return found;
}

ServedStore sync(const TestDevice& device, const char* options) {
  const auto entry = std::find_if(kPolicyList.begin(), kPolicyList.end(),
                                  [](const PolicyEntry& one) { return one.type == "sync"; });
  REQUIRE(entry != kPolicyList.end());
  return {device.make(), *entry, subtracting(), kElements, kShards, options};
}

std::vector<float> all(const ServedStore& served, float value) {
  return std::vector<float>(served.store->layout().totalElements(), value);
}

/// Runs the loop until `gradients` gradients are in the open round: a device takes some time to stage one.
void runUntilInRound(ServedStore& served, TestLoop& loop, size_t gradients) {
  REQUIRE(loop.until([&] {
    const auto waiting = served.policy->waiting();
    return !waiting.empty() && waiting.front().waiters.size() == gradients;
  }));
}

/// `count` trainers with ranks from 0, on one loop.
std::deque<PolicyTrainer> trainersOf(ServedStore& served, TestLoop& loop, uint32_t count) {
  std::deque<PolicyTrainer> trainers;
  for (uint32_t rank = 0; rank < count; rank++) trainers.emplace_back(served, loop, Rank{rank});
  return trainers;
}

DEVICE_TEST("a round is one update of all shards, answered when it is applied, weighted by samples") {
  for (const PolicyEntry& entry : roundPolicies()) {
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), kElements, kShards);
    TestLoop loop;
    auto trainers = trainersOf(served, loop, 3);
    const auto gradients = std::array{all(served, -1), all(served, -2), all(served, -8)};
    for (uint64_t round = 0; round < 4; round++) {
      auto first = trainers[0].startAll(Version{round}, gradients[0], 2);
      auto second = trainers[1].startAll(Version{round}, gradients[1], 1);
      CHECK_FALSE(loop.resolved(first));
      CHECK_FALSE(loop.resolved(second));
      runUntilInRound(served, loop, 2);
      REQUIRE(served.policy->waiting().size() == 1);
      const Waiting waiting = served.policy->waiting().front();
      CHECK(waiting.waiters == std::vector<SessionId>{trainers[0].ref().session, trainers[1].ref().session});
      REQUIRE(waiting.awaited.size() == 1);
      CHECK(waiting.awaited[0].session == trainers[2].ref().session);
      CHECK(served.shard(0).version() == Version{round});
      uint64_t updates = 0;
      for (auto answer : {loop.wait(trainers[2].startAll(Version{round}, gradients[2], 1)),
                          loop.wait(kj::mv(first)), loop.wait(kj::mv(second))}) {
        PSD_REQUIRE_OK(answer);
        CHECK(answer->applied());
        CHECK(answer->version == Version{round + 1});
        updates += answer->updates;
      }
      CHECK(updates == kShards);
      CHECK(served.policy->waiting().empty());
      // (2 · 1 + 1 · 2 + 1 · 8) / 4
      CHECK(allAre(trainers[0].pullAll(), 3 * (round + 1)));
    }
  }
}

DEVICE_TEST("a gradient for a closed round is late and does not change the model") {
  for (const PolicyEntry& entry : roundPolicies()) {
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), kElements, kShards);
    TestLoop loop;
    auto trainers = trainersOf(served, loop, 1);
    CHECK(trainers[0].pushAll(Version{0}, all(served, -1))->applied());
    const auto late = trainers[0].pushAll(Version{0}, all(served, -100));
    PSD_REQUIRE_OK(late);
    CHECK(late->outcome == PushOutcome::late);
    CHECK(allAre(trainers[0].pullAll(), 1));
    CHECK(trainers[0].pushAll(Version{1}, all(served, -1))->applied());
    CHECK(allAre(trainers[0].pullAll(), 2));
  }
}

DEVICE_TEST("a departing trainer leaves the round, and its contribution stays") {
  for (const PolicyEntry& entry : roundPolicies()) {
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), kElements, kShards);
    TestLoop loop;
    auto trainers = trainersOf(served, loop, 3);
    auto first = trainers[0].startAll(Version{0}, all(served, -1));
    auto second = trainers[1].startAll(Version{0}, all(served, -3));
    CHECK_FALSE(loop.resolved(second));
    runUntilInRound(served, loop, 2);
    trainers[1].leave();
    CHECK_FALSE(loop.resolved(first));
    trainers[2].leave();
    CHECK(loop.wait(kj::mv(first))->applied());
    CHECK(loop.wait(kj::mv(second))->applied());
    CHECK(allAre(trainers[0].pullAll(), 2));
    // Pushes of a trainer after it left have no effect.
    CHECK(trainers[2].pushAll(Version{1}, all(served, -1))->outcome == PushOutcome::late);
    CHECK(trainers[0].pushAll(Version{1}, all(served, -1))->applied());
  }
}

DEVICE_TEST("a step that is abandoned midway joins no round") {
  for (const PolicyEntry& entry : roundPolicies()) {
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), kElements, kShards);
    TestLoop loop;
    auto trainers = trainersOf(served, loop, 1);
    const auto minusOnes = all(served, -1);
    CHECK(trainers[0]
              .push(0, {}, std::span(minusOnes).first(served.shard(0).range().count),
                    testing::wholeShard(served.shard(0)))
              .applied == 0);
    CHECK(served.shard(0).version() == Version{0});
    CHECK(trainers[0].pushAll(Version{0}, minusOnes)->applied());
    CHECK(allAre(trainers[0].pullAll(), 1));
  }
}

DEVICE_TEST("the end of waiting answers current waiters and later ones") {
  for (const PolicyEntry& entry : roundPolicies()) {
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), kElements, kShards);
    TestLoop loop;
    auto trainers = trainersOf(served, loop, 3);
    auto first = trainers[0].startAll(Version{0}, all(served, -1));
    CHECK_FALSE(loop.resolved(first));
    runUntilInRound(served, loop, 1);
    served.policy->endWaits({ErrorCode::shuttingDown, "the end"});
    const auto ended = loop.wait(kj::mv(first));
    REQUIRE_FALSE(ended.ok());
    CHECK(ended.error().code == ErrorCode::shuttingDown);
    const auto refused = trainers[1].pushAll(Version{0}, all(served, -1));
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::shuttingDown);
    CHECK(allAre(trainers[2].pullAll(), 0));
    // The open round has nothing left to apply, whichever trainers leave.
    for (auto& trainer : trainers) trainer.leave();
    for (size_t i = 0; i < kShards; i++) CHECK(served.shard(i).version() == Version{0});
  }
}

DEVICE_TEST("rounds on many loops lose nothing and close in step") {
  constexpr size_t kThreads = 4;
  constexpr uint64_t kRounds = 100;
  for (const PolicyEntry& entry : roundPolicies()) {
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), kElements, kShards);
    std::atomic<size_t> joined = 0;
    std::atomic<uint64_t> failures = 0, wrong = 0;
    REQUIRE(runOnThreads(kThreads, [&](TestLoop& loop, size_t index) {
      PolicyTrainer trainer(served, loop, Rank{static_cast<uint32_t>(index)});
      for (joined++; joined < kThreads;) std::this_thread::yield();
      for (uint64_t round = 0; round < kRounds; round++) {
        wrong += !allAre(trainer.pullAll(), round);
        const auto answer = trainer.pushAll(Version{round}, all(served, -1));
        failures += !answer.ok() || !answer->applied();
      }
    }));
    CHECK(failures == 0);
    CHECK(wrong == 0);
    for (uint32_t s = 0; s < kShards; s++) CHECK(served.shard(s).version() == Version{kRounds});
  }
}

DEVICE_TEST("the order of arrival does not change a single bit") {
  for (const PolicyEntry& entry : roundPolicies()) {
    INFO(entry.type);
    std::vector<float> expected;
    for (uint64_t seed = 1; seed <= 6; seed++) {
      ServedStore served(device.make(), entry, subtracting(), kElements, kShards);
      TestLoop loop;
      auto trainers = trainersOf(served, loop, 5);
      std::vector<size_t> order = {0, 1, 2, 3, 4};
      std::shuffle(order.begin(), order.end(), Random(seed).engine());
      std::vector<kj::Promise<Result<PushAnswer>>> answers;
      std::vector<std::vector<float>> gradients;
      for (size_t rank : order) {
        Random random(100 + rank);
        std::normal_distribution<float> normal;
        auto& gradient = gradients.emplace_back(all(served, 0));
        for (float& value : gradient) value = normal(random.engine());
        answers.push_back(trainers[rank].startAll(Version{0}, gradient, static_cast<uint32_t>(1 + rank)));
      }
      for (auto& answer : answers) CHECK(loop.wait(kj::mv(answer))->applied());
      const auto values = trainers[0].pullAll();
      if (expected.empty()) expected = values;
      CHECK(firstDifference(values, expected) == std::nullopt);
    }
  }
}

DEVICE_TEST("sync closes with the first N of N + b") {
  ServedStore served = sync(device, R"({"backup_trainers": 1})");
  TestLoop loop;
  auto trainers = trainersOf(served, loop, 3);
  auto first = trainers[2].startAll(Version{0}, all(served, -1));
  CHECK(trainers[0].pushAll(Version{0}, all(served, -3))->applied());
  CHECK(loop.wait(kj::mv(first))->applied());
  CHECK(trainers[1].pushAll(Version{0}, all(served, -100))->outcome == PushOutcome::late);
  CHECK(allAre(trainers[1].pullAll(), 2));
}

DEVICE_TEST("sync proceeds or fails when a round takes too long") {
  const auto later = std::chrono::steady_clock::now() + std::chrono::hours(1);
  for (const bool proceeds : {true, false}) {
    ServedStore served = sync(device, proceeds ? R"({"round_timeout_ms": 1000})"
                                               : R"({"round_timeout_ms": 1000, "on_timeout": "fail"})");
    CHECK(served.policy->properties().ticks);
    TestLoop loop;
    auto trainers = trainersOf(served, loop, 2);
    auto first = trainers[0].startAll(Version{0}, all(served, -1));
    CHECK_FALSE(loop.resolved(first));
    runUntilInRound(served, loop, 1);
    loop.wait(served.policy->tick(later));
    const auto answer = loop.wait(kj::mv(first));
    CHECK(answer.ok() == proceeds);
    CHECK(allAre(trainers[0].pullAll(), proceeds ? 1 : 0));
    if (!proceeds) {
      CHECK(answer.error().code == ErrorCode::deadlineExceeded);
      CHECK(answer.message() == "round 0 timed out with 1 contribution(s), without ranks 1");
    }
  }
}

DEVICE_TEST(
    "a trainer that computes for a round is notified when its grace period starts, and when it has closed") {
  ServedStore served(device.make(), testing::entryOf("diloco"), subtracting(), kElements, kShards,
                     R"({"grace_ms": 60000, "quorum": 1, "start_trainers": 2})");
  CHECK(served.policy->properties().ticks);
  TestLoop loop;
  auto trainers = trainersOf(served, loop, 2);
  const SessionId missing = trainers[1].ref().session;
  auto due = served.policy->roundNotices()->roundDue(missing, Version{0});
  CHECK_FALSE(loop.resolved(due));
  auto first = trainers[0].startAll(Version{0}, all(served, -1));
  const auto told = loop.wait(kj::mv(due));
  PSD_REQUIRE_OK(told);
  CHECK(*told == RoundDue::closing);
  CHECK_FALSE(loop.resolved(first));
  CHECK(served.policy->rounds()->report().here == std::vector<Rank>{Rank{0}});
  auto again = served.policy->roundNotices()->roundDue(missing, Version{1});  // which no round has reached
  CHECK(*loop.wait(kj::mv(again)) == RoundDue::closing);
  loop.wait(served.policy->tick(std::chrono::steady_clock::now() + std::chrono::hours(1)));
  CHECK(loop.wait(kj::mv(first))->applied());
  auto closed = served.policy->roundNotices()->roundDue(missing, Version{0});
  CHECK(*loop.wait(kj::mv(closed)) == RoundDue::closed);
  CHECK(trainers[1].pushAll(Version{0}, all(served, -100))->outcome == PushOutcome::late);
  CHECK(allAre(trainers[1].pullAll(), 1));
  const RoundsReport report = served.policy->rounds()->report();
  CHECK(report.closed == 1);
  CHECK(report.last.missing == std::vector<Rank>{Rank{1}});
  REQUIRE(report.leftOut.size() == 1);
  CHECK(report.leftOut.front().running == 1);
  auto ended = served.policy->roundNotices()->roundDue(missing, Version{1});
  served.policy->endWaits({ErrorCode::shuttingDown, "over"});
  CHECK(loop.wait(kj::mv(ended)).error().code == ErrorCode::shuttingDown);
}

DEVICE_TEST(
    "a contribution after its round has closed counts in the open one, with less weight for each round") {
  ServedStore served(device.make(), testing::entryOf("diloco"), subtracting(), kElements, kShards,
                     R"({"grace_ms": 60000, "quorum": 2, "start_trainers": 3, "late": {"rate": 0.5}})");
  TestLoop loop;
  auto trainers = trainersOf(served, loop, 3);
  const auto close = [&] {
    loop.wait(served.policy->tick(std::chrono::steady_clock::now() + std::chrono::hours(1)));
  };
  for (uint64_t round = 0; round < 2; round++) {
    auto first = trainers[0].startAll(Version{round}, all(served, -1));
    auto second = trainers[1].startAll(Version{round}, all(served, -1));
    runUntilInRound(served, loop, 2);
    close();
    CHECK(loop.wait(kj::mv(first))->applied());
    CHECK(loop.wait(kj::mv(second))->applied());
    CHECK(served.policy->rounds()->report().last.late.empty());
  }
  // The third is asked to push what it has, rather than to drop it.
  auto due = served.policy->roundNotices()->roundDue(trainers[2].ref().session, Version{0});
  CHECK(*loop.wait(kj::mv(due)) == RoundDue::closing);
  auto late = trainers[2].startAll(Version{0}, all(served, -9));
  runUntilInRound(served, loop, 1);
  auto first = trainers[0].startAll(Version{2}, all(served, -4));
  runUntilInRound(served, loop, 2);
  close();
  const auto answer = loop.wait(kj::mv(late));
  PSD_REQUIRE_OK(answer);
  CHECK(answer->applied());
  CHECK(loop.wait(kj::mv(first))->applied());
  // Two rounds late, so its weight is a fourth: (9 · ¼ + 4 · 1) / 1.25 = 5.
  CHECK(allAre(trainers[0].pullAll(), 2 + 5));
  const RoundsReport report = served.policy->rounds()->report();
  CHECK(report.closed == 3);
  CHECK(report.last.contributors == std::vector<Rank>{Rank{0}, Rank{2}});
  CHECK(report.last.late == std::vector<Rank>{Rank{2}});
  // One of a round still counts once.
  auto once = trainers[2].startAll(Version{0}, all(served, -9));
  runUntilInRound(served, loop, 1);
  CHECK(trainers[2].pushAll(Version{3}, all(served, -9))->outcome == PushOutcome::late);
  CHECK_FALSE(loop.resolved(once));
}

DEVICE_TEST("trainers on several loops are notified of the ends of rounds, each wait once") {
  constexpr size_t kTrainers = 3;
  constexpr uint64_t kRounds = 20;
  ServedStore served(device.make(), testing::entryOf("diloco"), subtracting(), kElements, kShards,
                     R"({"grace_ms": 60000, "quorum": 1, "start_trainers": 3})");
  std::array<uint64_t, kTrainers> told{};
  const bool went = testing::runOnThreads(kTrainers, [&](TestLoop& loop, size_t index) {
    PolicyTrainer trainer(served, loop, Rank{static_cast<uint32_t>(index)});
    for (uint64_t round = 0; round < kRounds; round++) {
      auto due = served.policy->roundNotices()->roundDue(trainer.ref().session, Version{round});
      auto push = trainer.startAll(Version{round}, all(served, -1));
      if (!loop.wait(kj::mv(push))->applied()) throw std::runtime_error("a push was not applied");
      if (loop.wait(kj::mv(due)).ok()) told[index]++;
    }
  });
  CHECK(went);
  for (const uint64_t count : told) CHECK(count == kRounds);
  CHECK(served.shard(0).version() == Version{kRounds});
}

DEVICE_TEST("sync waits for the start trainers") {
  ServedStore served = sync(device, R"({"start_trainers": 2})");
  TestLoop loop;
  auto trainers = trainersOf(served, loop, 1);
  auto first = trainers[0].startAll(Version{0}, all(served, -1));
  CHECK_FALSE(loop.resolved(first));
  runUntilInRound(served, loop, 1);
  CHECK(served.policy->waiting().front().joins == 1);
  trainers.emplace_back(served, loop, Rank{1});
  CHECK_FALSE(loop.resolved(first));
  CHECK(trainers[1].pushAll(Version{0}, all(served, -1))->applied());
  CHECK(loop.wait(kj::mv(first))->applied());
}

DEVICE_TEST("krum chooses one contribution for all shards, by distances over the whole model") {
  ServedStore served = sync(device, R"({"aggregator": {"type": "krum", "byzantine": 1}})");
  TestLoop loop;
  auto trainers = trainersOf(served, loop, 5);
  // In each shard another one is in the middle, and far off in the next; trainer 3, close to one of them in
  // each, is nearest to the others over all shards, though it would be chosen in none; trainer 2 is far off.
  const std::array<size_t, kShards> middle = {0, 1, 4};
  std::vector<std::vector<float>> gradients(5, all(served, -1));
  gradients[2] = all(served, -1000);
  for (size_t s = 0; s < kShards; s++) {
    const ShardRange& range = served.shard(s).range();
    constexpr std::array<float, kShards> kValues = {-2, -3, -22};
    for (size_t i = 0; i < kShards; i++) {
      auto& gradient = gradients[middle[(s + i) % kShards]];
      std::fill_n(gradient.begin() + static_cast<ptrdiff_t>(range.begin), range.count, kValues[i]);
    }
  }
  std::vector<kj::Promise<Result<PushAnswer>>> answers;
  for (size_t rank = 0; rank < 5; rank++) {
    answers.push_back(trainers[rank].startAll(Version{0}, gradients[rank]));
  }
  for (auto& promise : answers) {
    const auto answer = loop.wait(kj::mv(promise));
    PSD_REQUIRE_OK(answer);
    CHECK(answer->applied());
  }
  CHECK(allAre(trainers[0].pullAll(), 1));  // trainer 3's, whole
}

/// Σ weights · contributions by the definition of radial-directional averaging, for elements [begin, end).
void addRda(const std::vector<std::vector<float>>& rows, const std::vector<double>& weights, size_t begin,
            size_t end, std::vector<double>& out) {
  double all = 0, length = 0, square = 0;
  std::vector<double> direction(end - begin);
  for (size_t k = 0; k < rows.size(); k++) {
    double norm = 0;
    for (size_t i = begin; i < end; i++) norm += double{rows[k][i]} * rows[k][i];
    norm = std::sqrt(norm);
    all += weights[k];
    length += weights[k] * norm;
    for (size_t i = begin; i < end; i++) direction[i - begin] += weights[k] * rows[k][i] / norm;
  }
  for (const double value : direction) square += value * value;
  for (size_t i = begin; i < end; i++) out[i] = length / all * direction[i - begin] / std::sqrt(square);
}

DEVICE_TEST("rda works on whole tensors, with the same bits for any number of shards") {
  const ModelSpec model{"",
                        {{"embedding", DType::f32, {40, 5}},
                         {"a", DType::f32, {3}},
                         {"b", DType::f32, {33, 31}},
                         {"c", DType::f32, {700}}}};
  const ModelLayout layout(model);
  const std::vector<double> weights = {1, 2, 3, 4};
  std::vector<std::vector<float>> rows;
  for (uint64_t rank = 0; rank < weights.size(); rank++) {
    Random random(50 + rank);
    std::normal_distribution<float> normal;
    auto& row = rows.emplace_back(layout.totalElements());
    for (const TensorPlace& place : layout.places()) {
      for (uint64_t i = 0; i < place.count; i++) row[place.begin + i] = normal(random.engine());
    }
  }
  std::vector<double> expected(layout.totalElements());
  for (size_t tensor = 1; tensor < 4; tensor++) {
    const TensorPlace& place = layout.places()[tensor];
    addRda(rows, weights, place.begin, place.begin + place.count, expected);
  }
  for (size_t i = 0; i < layout.places()[0].count; i++) {
    for (size_t k = 0; k < rows.size(); k++) expected[i] += weights[k] / 10 * rows[k][i];
  }
  const auto entry = std::ranges::find(kPolicyList, "sync", &PolicyEntry::type);
  std::vector<float> first;
  for (const uint32_t shards : {1, 2, 3, 7, 40}) {
    INFO(shards << " shards");
    ServedStore served(device.make(), *entry, subtracting(), model, shards,
                       R"({"aggregator": {"type": "rda", "direct": "embed*"}})");
    TestLoop loop;
    auto trainers = trainersOf(served, loop, 4);
    std::vector<kj::Promise<Result<PushAnswer>>> answers;
    for (size_t rank : {2, 0, 3, 1}) {
      answers.push_back(
          trainers[rank].startAll(Version{0}, rows[rank], static_cast<uint32_t>(weights[rank])));
    }
    for (auto& answer : answers) CHECK(loop.wait(kj::mv(answer))->applied());
    const std::vector<float> values = trainers[0].pullAll();
    if (first.empty()) {
      first = values;
      for (size_t i = 0; i < values.size(); i++) REQUIRE(std::abs(-values[i] - expected[i]) < 1e-5);
    }
    CHECK(firstDifference(values, first) == std::nullopt);
  }
}

DEVICE_TEST("the trainers of a round set the same hyperparameters, or the later one is refused") {
  ServedStore served = sync(device, "{}");
  TestLoop loop;
  auto trainers = trainersOf(served, loop, 2);
  auto first = trainers[0].startAll({}, all(served, -1), 1, 0.5);
  runUntilInRound(served, loop, 1);
  const auto refused = loop.wait(trainers[1].startAll({}, all(served, -1), 1, 0.25));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalidArgument);
  CHECK(refused.message().find("round 0: rank 1 and rank 0 step differently: lr 0.25 and 0.5") == 0);
  PSD_REQUIRE_OK(loop.wait(trainers[1].startAll({}, all(served, -1), 1, 0.5)));
  PSD_REQUIRE_OK(loop.wait(kj::mv(first)));
  CHECK(trainers[0].pull(0, testing::wholeShard(served.shard(0))).values.front() == 0.5f);
}

}  // namespace
}  // namespace psd::policy_rounds_test
