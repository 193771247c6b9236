#include "server/policy/modifiers.h"

#include <cmath>

#include "server/policy/policy_list.h"
#include "server/policy/pulled_weights.h"
#include "test/support/catch.h"

namespace psd::modifiers_test {
namespace {

Result<Modifiers> read(const char* json, const ModifierRefusals& refusals = {}) {
  ObjectReader in(nlohmann::ordered_json::parse(json));
  const Modifiers modifiers = readModifiers(in, refusals);
  PSD_RETURN_IF_ERROR(in.finish());
  return modifiers;
}

TEST_CASE("staleness lowers the rate as its rule says") {
  const auto factor = [](const char* json, uint64_t staleness) {
    const auto modifiers = read(json);
    PSD_REQUIRE_OK(modifiers);
    return modifiers->staleness.factor(staleness);
  };
  for (uint64_t staleness : {0, 1, 7}) CHECK(factor("{}", staleness) == 1);
  const char* inverse = R"({"staleness": {"rate": "inverse"}})";
  CHECK(factor(inverse, 0) == 1);
  CHECK(factor(inverse, 1) == 1);
  CHECK(factor(inverse, 2) == 0.5);
  CHECK(factor(inverse, 30) == 1.0 / 30);
  const char* damped = R"({"staleness": {"rate": "damped"}})";
  CHECK(factor(damped, 0) == 1);
  CHECK(factor(damped, 10) == 0.5);
  CHECK(factor(R"({"staleness": {"rate": "damped", "a": 1}})", 3) == 0.25);
}

TEST_CASE("a gradient is too old above staleness.max") {
  CHECK_FALSE(read("{}")->staleness.tooOld(1'000'000));
  const auto modifiers = read(R"({"staleness": {"max": 3}})");
  PSD_REQUIRE_OK(modifiers);
  CHECK_FALSE(modifiers->staleness.tooOld(3));
  CHECK(modifiers->staleness.tooOld(4));
  CHECK(read(R"({"staleness": {"max": 0}})")->staleness.tooOld(1));
}

TEST_CASE("a norm above the bound is scaled down to it") {
  const Clip clip{.norm = 2, .value = {}};
  CHECK(clip.scale(0) == 1);
  CHECK(clip.scale(4) == 1);
  CHECK(clip.scale(16) == 0.5);
  CHECK(Clip{}.scale(1e300) == 1);
}

TEST_CASE("invalid modifiers are rejected with a line that says why") {
  const auto problem = [](const char* json, const ModifierRefusals& refusals = {}) {
    const auto modifiers = read(json, refusals);
    REQUIRE_FALSE(modifiers.ok());
    return modifiers.message();
  };
  CHECK(problem(R"({"staleness": {"rate": "inverse", "a": 1}})") ==
        "staleness.a: requires \"rate\": \"damped\"");
  CHECK(problem(R"({"staleness": {"rate": "linear"}})").find("staleness.rate") == 0);
  CHECK(problem(R"({"delay_compensation": {}})").find("delay_compensation.lambda: is required") == 0);
  CHECK(problem(R"({"delay_compensation": {"lambda": 0}})").find("delay_compensation.lambda") == 0);
  CHECK(problem(R"({"clip": {}})") == "clip: requires exactly one of norm and value");
  CHECK(problem(R"({"clip": {"norm": 1, "value": 1}})") == "clip: requires exactly one of norm and value");
  CHECK(problem(R"({"clip": {"norm": 1}})", {.clipNorm = "cannot be"}) == "clip.norm: cannot be");
  CHECK(problem(R"({"staleness": {"max": 1}})", {.staleness = "never"}) == "staleness: never");
  PSD_REQUIRE_OK(read(R"({"clip": {"value": 1}})", {.clipNorm = "cannot be"}));
}

TEST_CASE("each policy accepts the modifiers that apply to it, and says why it accepts no others") {
  const std::vector<std::pair<const char*, std::string>> modifiers = {
      {"staleness", R"({"staleness": {"rate": "inverse", "max": 4}})"},
      {"delay_compensation", R"({"delay_compensation": {"lambda": 2, "adaptive": true}})"},
      {"clip.value", R"({"clip": {"value": 1}})"},
      {"clip.norm", R"({"clip": {"norm": 1}})"}};
  const std::vector<std::pair<std::string, std::vector<bool>>> expected = {
      {"hogwild", {true, false, true, false}},         {"locked", {true, true, true, true}},
      {"bounded_staleness", {true, true, true, true}}, {"sync", {false, false, true, true}},
      {"easgd", {false, false, false, false}},         {"local_sgd", {false, false, false, false}},
      {"diloco", {false, false, false, false}}};
  for (const auto& [type, takes] : expected) {
    for (size_t i = 0; i < modifiers.size(); i++) {
      INFO(type << ", " << modifiers[i].first);
      auto json = nlohmann::ordered_json::parse(modifiers[i].second);
      json["type"] = type;
      ObjectReader in(json);
      const PolicyChoice choice = readPolicy(in);
      const Status status = in.finish();
      CHECK(status.ok() == takes[i]);
      if (!takes[i]) {
        const std::string key = modifiers[i].first;
        CHECK(status.message().find(key.substr(0, key.find('.'))) == 0);
        CHECK(status.message().find("no key of type") == std::string::npos);
      } else {
        CHECK(choice.plan.changesGradients == (i != 0));
      }
    }
  }
}

TEST_CASE(
    "kept snapshots are released, the oldest first, before a pull waits, under each policy that keeps them") {
  const auto budget = ByteBudget::make(40);
  const auto room = std::make_shared<SnapshotBudget>(budget);
  PulledWeights pulled(room), others(room);
  constexpr SessionId kA{1};
  constexpr ShardId kShard{0};
  const auto note = [&](PulledWeights& keeper, uint64_t version) {
    auto lease = room->tryTake(10);
    REQUIRE(lease);
    keeper.note(
        kA, kShard,
        std::make_shared<const ShardSnapshot>(ShardSnapshot{Version{version}, {}, std::move(*lease)}));
  };
  pulled.admit(kA);
  others.admit(kA);
  note(pulled, 1);
  note(pulled, 2);
  CHECK(budget->used() == 20);
  const auto more = room->tryTake(30);
  REQUIRE(more);
  CHECK(pulled.find(kA, kShard, Version{2}) != nullptr);
  CHECK(pulled.find(kA, kShard, Version{1}) == nullptr);
  CHECK(room->tryTake(10));  // the last one was released
  CHECK_FALSE(room->tryTake(20));
  CHECK(budget->used() == 30);
}

TEST_CASE("what trainers pulled is found by its version, and released in time") {
  PulledWeights pulled;
  const auto snapshot = [](uint64_t version) {
    return std::make_shared<const ShardSnapshot>(ShardSnapshot{Version{version}, {}});
  };
  constexpr SessionId kA{1}, kB{2};
  constexpr ShardId kShard{0};
  pulled.admit(kA);
  pulled.admit(kB);
  CHECK(pulled.find(kA, kShard, Version{0}) == nullptr);
  const auto five = snapshot(5);
  pulled.note(kA, kShard, five);
  pulled.note(kB, kShard, five);
  pulled.note(kA, kShard, snapshot(6));
  CHECK(pulled.find(kA, kShard, Version{5}) == five);
  CHECK(pulled.find(kA, kShard, Version{7}) == nullptr);
  CHECK(pulled.find(kA, kShard, Version{5}) == nullptr);  // the version had advanced
  CHECK(pulled.find(kA, ShardId{1}, Version{5}) == nullptr);
  CHECK(five.use_count() == 2);
  pulled.forget(kB);
  CHECK(five.use_count() == 1);
  for (uint64_t version = 10; version < 20; version++) pulled.note(kA, kShard, snapshot(version));
  CHECK(pulled.find(kA, kShard, Version{19 - PulledWeights::kKept}) == nullptr);
  CHECK(pulled.find(kA, kShard, Version{20 - PulledWeights::kKept}) != nullptr);
}

}  // namespace
}  // namespace psd::modifiers_test
