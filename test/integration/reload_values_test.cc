// Each setting that a reload changes takes effect for a trainer that continues.

#include <cmath>
#include <vector>

#include <spdlog/spdlog.h>

#include "test/integration/reload_trainers.h"

namespace psd::reload_values_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::configOf;
using testing::gradientOf;
using testing::joined;
using testing::LocalServer;
using testing::valueOf;

/// A daemon and two joined trainers. The first one's pushes are always fresh.
struct Training {
  explicit Training(const Json& config) : server(config) {}

  PushInfo push(Client& client, const std::vector<float>& gradient, const std::vector<Version>& basis) {
    auto pushed = client.push(Step{++steps}, gradient, 1, basis).wait();
    PSD_REQUIRE_OK(pushed);
    return *pushed;
  }
  std::vector<Version> pull(Client& client) {
    std::vector<float> values(ModelLayout(testing::kModel).totalElements());
    auto pulled = client.pull(values).wait();
    PSD_REQUIRE_OK(pulled);
    return pulled->versions;
  }
  /// The change of the weights by a fresh gradient.
  float step(float gradient = -1) {
    const float before = valueOf(*first);
    CHECK(push(*first, gradientOf(gradient), pull(*first)).outcome == PushOutcome::applied);
    return valueOf(*first) - before;
  }
  /// The change by a gradient that is `staleness` updates old when it arrives.
  float staleStep(uint64_t staleness, PushOutcome outcome = PushOutcome::applied) {
    const auto basis = pull(*second);
    for (uint64_t i = 0; i < staleness; i++) step();
    const float before = valueOf(*first);
    const PushInfo pushed = push(*second, gradientOf(-1), basis);
    CHECK(pushed.outcome == outcome);
    CHECK(pushed.staleness == staleness);
    return valueOf(*first) - before;
  }
  void reload(const Json& config) { PSD_REQUIRE_OK(server.reload(config)); }
  void reloadPolicy(const Json& policy) { reload(configOf(policy)); }

  LocalServer server;
  std::unique_ptr<Client> first = joined(server.address(), 0, 2), second = joined(server.address(), 1, 2);
  uint64_t steps = 0;
};

Json locked(const char* modifier = nullptr, const Json& options = {}) {
  Json policy = {{"type", "locked"}};
  if (modifier) policy[modifier] = options;
  return policy;
}

TEST_CASE("Reload: the schedule changes, and counts the updates that were") {
  const auto config = [](const Json& schedule) {
    Json config = configOf(locked(), 4);
    config["optimizer"]["schedule"] = schedule;
    return config;
  };
  Training training(configOf(locked(), 4));
  CHECK(training.step() == 4);
  CHECK(training.step() == 4);
  training.reload(config({{"type", "step"}, {"every_updates", 2}, {"gamma", 0.5}}));
  CHECK(training.step() == 2);  // the third update and the fourth
  CHECK(training.step() == 2);
  CHECK(training.step() == 1);
  training.reload(config({{"type", "constant"}, {"warmup_updates", 8}}));
  CHECK(training.step() == 3);  // 6 of 8
  training.reload(config({{"type", "step"}, {"every_updates", 3}, {"gamma", 0.5}}));
  CHECK(training.step() == 1);  // 4 · 0.5²
  training.reload(configOf(locked(), 4));
  CHECK(training.step() == 4);
}

TEST_CASE("Reload: what staleness does changes") {
  Training training(configOf(locked()));
  CHECK(training.staleStep(4) == 1);
  training.reloadPolicy(locked("staleness", {{"rate", "inverse"}}));
  CHECK(training.staleStep(4) == 0.25f);
  training.reloadPolicy(locked("staleness", {{"rate", "damped"}, {"a", 0.25}}));
  CHECK(training.staleStep(4) == 0.5f);
  training.reloadPolicy(locked("staleness", {{"max", 3}}));
  CHECK(training.staleStep(3) == 1);
  CHECK(training.staleStep(4, PushOutcome::stale) == 0);
  training.reloadPolicy(locked("staleness", {{"max", 4}}));
  CHECK(training.staleStep(4) == 1);
  training.reloadPolicy(locked());
  CHECK(training.staleStep(5) == 1);
  CHECK(training.server.status()["counters"]["stale_pushes"] == 1);
}

TEST_CASE("Reload: delay compensation changes") {
  Training training(configOf(locked()));
  CHECK(training.staleStep(1) == 1);
  // One update of 1 was in between: −1 + λ · 1 · 1.
  training.reloadPolicy(locked("delay_compensation", {{"lambda", 0.5}}));
  CHECK(training.staleStep(1) == 0.5f);
  CHECK(training.step() == 1);
  training.reloadPolicy(locked("delay_compensation", {{"lambda", 0.25}}));
  CHECK(training.staleStep(1) == 0.75f);
  training.reloadPolicy(locked());
  CHECK(training.staleStep(1) == 1);
}

TEST_CASE("Reload: clipping changes") {
  Training training(configOf(locked()));
  CHECK(training.step(-8) == 8);
  training.reloadPolicy(locked("clip", {{"value", 2}}));
  CHECK(training.step(-8) == 2);
  training.reloadPolicy(locked("clip", {{"value", 4}}));
  CHECK(training.step(-8) == 4);
  // The norm of 2050 elements of 1 is half that of elements of 2.
  training.reloadPolicy(locked("clip", {{"norm", std::sqrt(2050.0)}}));
  CHECK(std::abs(training.step(-2) - 1) < 1e-4f);
  training.reloadPolicy(locked());
  CHECK(training.step(-2) == 2);
}

TEST_CASE("Reload: limits change") {
  const auto config = [](const Json& limits) {
    Json config = configOf(locked());
    config["limits"] = limits;
    return config;
  };
  Training training(config({{"drain_ms", 50'000}, {"connections", 100}}));
  CHECK(training.step() == 1);

  SECTION("of a shutdown and of a reload") {
    training.reload(config({{"drain_ms", 50}, {"connections", 100}}));
    CHECK(training.step() == 1);
    const auto gradient = gradientOf(-1);
    auto half = training.second->beginPush(Step{100}, gradient, 1, training.pull(*training.second));
    const auto slices = training.server.status()["counters"]["push_slices"].get<uint64_t>();
    half->ready(0, 1024);
    training.server.statusWhen(
        [&](const Json& status) { return status["counters"]["push_slices"] == slices + 1; });
    const auto refused = training.server.reload(configOf({{"type", "hogwild"}}));
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.message().find("within limits.drain_ms (50)") != std::string::npos);
    half->ready(1024, gradient.size() - 1024);
    PSD_REQUIRE_OK(half->finish().wait());
  }
  SECTION("of connections") {
    training.reload(config({{"drain_ms", 50'000}, {"connections", 2}}));
    CHECK(training.step() == 1);
    ClientOptions options;
    options.servers = {training.server.unixAddress()};
    options.connectTimeout = std::chrono::milliseconds(50);  // it retries while it is rejected
    // The reserved connections admit operators, and no trainers.
    auto third = Client::connect(options);
    PSD_REQUIRE_OK(third);
    const auto values = gradientOf(0);
    const auto refused =
        (*third)->join({Rank{1}, 2}, testing::kModel, [&] { return std::span<const float>(values); });
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.message().find("the remaining connections are reserved for operators") !=
          std::string::npos);
    PSD_REQUIRE_OK(training.server.reload(configOf(locked())));
    third->reset();
    training.second.reset();
    training.second = joined(training.server.address(), 1, 2);
    CHECK(training.step() == 1);
  }
}

TEST_CASE("Reload: a group's own policy changes, and the others' stays, with its open round") {
  const auto config = [](const Json& policy) {
    Json config = configOf({{"type", "sync"}});
    config["groups"] = {{{"match", "fc.bias"}, {"policy", policy}}};
    return config;
  };
  Training training(config(locked()));
  const auto gradient = gradientOf(-8);
  std::vector<float> weights, biases;
  uint64_t step = 0;
  const auto together = [&] {
    auto first = training.first->push(Step{step + 1}, gradient, 1, training.pull(*training.first));
    auto second = training.second->push(Step{step + 1}, gradient, 1, training.pull(*training.second));
    for (auto* push : {&first, &second}) {
      const auto answer = push->wait();
      PSD_REQUIRE_OK(answer);
      CHECK(answer->outcome == PushOutcome::applied);
    }
    step++;
    weights.push_back(valueOf(*training.first, 0));
    biases.push_back(valueOf(*training.first, 1));
  };
  together();
  training.reload(config(locked("clip", {{"value", 1}})));
  together();
  CHECK(training.server.status()["policy"] == "fc.bias: locked, others: sync");

  auto first = training.first->push(Step{3}, gradient, 1, training.pull(*training.first));
  const auto waiting = [](const Json& status) { return !status["waiting"].empty(); };
  training.server.statusWhen(waiting);
  const auto basis = training.pull(*training.second);
  training.reload(config(locked("clip", {{"value", 2}})));
  REQUIRE(waiting(training.server.status()));
  const auto second = training.second->push(Step{3}, gradient, 1, basis).wait();
  PSD_REQUIRE_OK(second);
  CHECK(second->outcome == PushOutcome::applied);
  PSD_REQUIRE_OK(first.wait());
  weights.push_back(valueOf(*training.first, 0));
  biases.push_back(valueOf(*training.first, 1));

  CHECK(weights == std::vector<float>{8, 16, 24});  // one update of both
  CHECK(biases == std::vector<float>{16, 18, 21});  // one each: in the third, 1 before the change and 2 after
}

TEST_CASE("Reload: of a configuration with one key that cannot change nothing is in force") {
  Json before = configOf(locked("clip", {{"value", 4}}));
  before["optimizer"]["schedule"] = {{"type", "step"}, {"every_updates", 1'000}, {"gamma", 0.5}};
  before["groups"] = {{{"match", "fc.bias"}, {"policy", locked("clip", {{"value", 2}})}}};
  before["limits"] = {{"staged_bytes", 65536}};
  before["log"] = {{"level", "info"}};
  Json next = configOf(locked("staleness", {{"max", 0}}), 2);
  next["optimizer"]["schedule"] = {{"type", "constant"}, {"warmup_updates", 1'000}};
  next["groups"] = {{{"match", "fc.bias"}, {"policy", locked("clip", {{"value", 1}})}}};
  next["limits"] = {{"staged_bytes", 131072}, {"connections", 1}};
  next["log"] = {{"level", "off"}};
  Training training(before);
  const Json was = training.server.status()["optimizer"];
  const auto steps = [&] {
    std::vector<float> moved = {valueOf(*training.first, 0), valueOf(*training.first, 1)};
    CHECK(training.push(*training.first, gradientOf(-8), {}).outcome == PushOutcome::applied);
    return std::vector{valueOf(*training.first, 0) - moved[0], valueOf(*training.first, 1) - moved[1]};
  };
  CHECK(steps() == std::vector<float>{4, 2});
  const std::vector<std::pair<const char*, Json>> fixed = {{"shards", 4}, {"threads", 3}, {"spin_us", 10}};
  for (const auto& [key, value] : fixed) {
    INFO(key);
    Json refused = next;
    refused[key] = value;
    const auto change = training.server.reload(refused);
    REQUIRE_FALSE(change.ok());
    CHECK(change.message().find(key + std::string(": cannot change while the daemon runs")) !=
          std::string::npos);
    CHECK(steps() == std::vector<float>{4, 2});
    CHECK(spdlog::get_level() == spdlog::level::info);
    const Json status = training.server.status();
    CHECK(status["policy"] == "fc.bias: locked, others: locked");
    CHECK(status["optimizer"] == was);
  }
  CHECK(training.server.status()["counters"]["reloads"] == 0);
}

TEST_CASE("Reload: what is logged changes") {
  const auto config = [](const char* level) {
    Json config = configOf(locked());
    config["log"] = {{"level", level}};
    return config;
  };
  const auto before = spdlog::get_level();
  Training training(config("info"));
  for (const auto& [name, level] :
       {std::pair("warn", spdlog::level::warn), std::pair("debug", spdlog::level::debug)}) {
    training.reload(config(name));
    CHECK(spdlog::get_level() == level);
    CHECK(training.step() == 1);
  }
  spdlog::set_level(before);
}

}  // namespace
}  // namespace psd::reload_values_test
