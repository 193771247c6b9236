// The effect of modifiers on gradients and rates, under every policy that supports them.

#include <algorithm>
#include <cmath>
#include <vector>

#include "test/contract/policy_trainer.h"
#include "test/support/finite_values.h"

namespace psd::policy_modifiers_test {
namespace {

using testing::allAre;
using testing::asynchronousPolicies;
using testing::Piece;
using testing::PolicyTrainer;
using testing::Pulled;
using testing::ServedStore;
using testing::subtracting;
using testing::TestLoop;
using testing::Update;
using testing::wholeShard;

constexpr uint64_t kElements = 1600;

/// Whether the policy accepts these options.
bool takes(const PolicyEntry& entry, const char* options) {
  ObjectReader in(nlohmann::ordered_json::parse(options));
  entry.read(in);
  return in.finish().ok();
}

std::vector<float> all(const ServedStore& served, float value) {
  return std::vector<float>(served.store->layout().totalElements(), value);
}

/// Pushes ones with this staleness, and returns the decrease of the weights.
float stepOf(PolicyTrainer& trainer, ServedStore& served, uint64_t staleness) {
  const Shard& shard = served.shard(0);
  const float before = trainer.pullAll().front();
  const auto pushed =
      trainer.push(0, Version{shard.version().value - staleness}, all(served, 1), wholeShard(shard));
  CHECK_FALSE(pushed.failed);
  return before - trainer.pullAll().front();
}

DEVICE_TEST("staleness lowers the rate of each gradient separately") {
  for (const PolicyEntry& entry : asynchronousPolicies()) {
    INFO(entry.type);
    for (const char* options :
         {R"({"staleness": {"rate": "inverse"}})", R"({"staleness": {"rate": "damped", "a": 0.25}})"}) {
      if (!takes(entry, options)) continue;
      const bool inverse = std::string_view(options).find("inverse") != std::string_view::npos;
      ServedStore served(device.make(), entry, subtracting(), kElements, 1, options);
      TestLoop loop;
      PolicyTrainer trainer(served, loop);
      for (int i = 0; i < 8; i++) stepOf(trainer, served, 0);
      for (uint64_t staleness : {0, 1, 2, 4, 8, 0}) {
        const double expected = inverse ? 1.0 / static_cast<double>(std::max<uint64_t>(staleness, 1))
                                        : 1 / (1 + 0.25 * static_cast<double>(staleness));
        CHECK(std::abs(stepOf(trainer, served, staleness) - expected) < 1e-5);
      }
    }
  }
}

DEVICE_TEST("a gradient that is too old is answered stale, whole or in slices, and changes nothing") {
  constexpr const char* kOptions = R"({"staleness": {"max": 2}})";
  for (const PolicyEntry& entry : asynchronousPolicies()) {
    INFO(entry.type);
    if (!takes(entry, kOptions)) continue;
    ServedStore served(device.make(), entry, subtracting(), kElements, 1, kOptions);
    TestLoop loop;
    PolicyTrainer trainer(served, loop);
    const auto gradient = all(served, -1);
    for (uint64_t i = 0; i < 4; i++) CHECK(trainer.pushAll(Version{i}, gradient)->applied());
    CHECK(trainer.pushAll(Version{2}, gradient)->applied());  // 2 old
    CHECK(served.shard(0).version() == Version{5});
    const auto stale = trainer.pushAll(Version{2}, gradient);  // 3 old
    PSD_REQUIRE_OK(stale);
    CHECK(stale->outcome == PushOutcome::stale);
    CHECK(stale->staleness == 3);
    const std::vector<Piece> pieces = {{800, 800}, {0, 160}, {160, 640}};
    const auto sliced = trainer.push(0, Version{1}, gradient, pieces);
    CHECK_FALSE(sliced.failed);
    CHECK(sliced.applied == 0);
    CHECK(served.shard(0).version() == Version{5});
    CHECK(allAre(trainer.pullAll(), 5));
    CHECK(trainer.pushAll(Version{5}, gradient)->applied());
    CHECK(allAre(trainer.pullAll(), 6));
  }
}

DEVICE_TEST("clip.value bounds every element") {
  constexpr const char* kOptions = R"({"clip": {"value": 3}})";
  for (const PolicyEntry& entry : kPolicyList) {
    INFO(entry.type);
    if (!takes(entry, kOptions)) continue;
    ServedStore served(device.make(), entry, subtracting(), kElements, 3, kOptions);
    TestLoop loop;
    PolicyTrainer trainer(served, loop);
    CHECK(trainer.pushAll(Version{0}, all(served, -100))->applied());
    CHECK(allAre(trainer.pullAll(), 3));
    CHECK(trainer.pushAll(Version{1}, all(served, -2))->applied());
    CHECK(allAre(trainer.pullAll(), 5));
  }
}

DEVICE_TEST("clip.norm bounds the gradient of all shards together") {
  // 1600 elements of 2 have the norm 80.
  constexpr const char* kOptions = R"({"clip": {"norm": 40}})";
  size_t policies = 0;
  for (const PolicyEntry& entry : kPolicyList) {
    if (!takes(entry, kOptions)) continue;
    policies++;
    for (uint32_t shards : {1, 3}) {
      INFO(entry.type << ", " << shards << " shards");
      ServedStore served(device.make(), entry, subtracting(), kElements, shards, kOptions);
      TestLoop loop;
      PolicyTrainer trainer(served, loop);
      const auto clipped = trainer.pushAll(Version{0}, all(served, -2));
      PSD_REQUIRE_OK(clipped);
      CHECK(clipped->applied());
      CHECK(allAre(trainer.pullAll(), 1));
      CHECK(trainer.pushAll(Version{1}, all(served, -1))->applied());  // 40: within
      CHECK(allAre(trainer.pullAll(), 2));
      for (uint32_t s = 0; s < shards; s++) CHECK(served.shard(s).version() == Version{2});
    }
  }
  CHECK(policies >= 3);
}

DEVICE_TEST("clip.norm accepts a step in slices, and abandons one that is not finished") {
  constexpr const char* kOptions = R"({"clip": {"norm": 40}})";
  for (const PolicyEntry& entry : asynchronousPolicies()) {
    if (!takes(entry, kOptions)) continue;
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), kElements, 2, kOptions);
    TestLoop loop;
    PolicyTrainer trainer(served, loop);
    const auto gradient = all(served, -2);
    const uint64_t count = served.shard(0).range().count;
    Update half(served, trainer.lanes(), 0, {}, std::span(gradient).first(count), trainer.ref(), Step{0});
    CHECK(loop.wait(half.send({160, count - 160}))->outcome == PushOutcome::received);
    auto waiting = half.send({0, 160});
    CHECK_FALSE(loop.resolved(waiting));
    CHECK(served.shard(0).version() == Version{0});
    CHECK(trainer.pushAll(Version{0}, gradient)->applied());
    CHECK(allAre(trainer.pullAll(), 1));
    trainer.leave();
  }
}

TEST_CASE("clip.norm keeps nothing of a trainer that has left") {
  constexpr const char* kOptions = R"({"clip": {"norm": 40}})";
  for (const PolicyEntry& entry : asynchronousPolicies()) {
    if (!takes(entry, kOptions)) continue;
    INFO(entry.type);
    ServedStore served(makeCpuBackend(), entry, subtracting(), kElements, 2, kOptions);
    TestLoop loop;
    PolicyTrainer trainer(served, loop);
    const auto gradient = all(served, -2);
    const uint64_t count = served.shard(0).range().count;
    trainer.leave();
    Update late(served, trainer.lanes(), 0, {}, std::span(gradient).first(count), trainer.ref(), Step{1});
    CHECK(loop.wait(late.send({0, count}))->outcome == PushOutcome::late);
    CHECK(served.shard(0).version() == Version{0});
  }
}

DEVICE_TEST("a bound counts steps that clip.norm delayed") {
  const PolicyEntry& entry = testing::entryOf("bounded_staleness");
  ServedStore served(device.make(), entry, subtracting(), kElements, 2,
                     R"({"bound": 0, "clip": {"norm": 40}})");
  TestLoop loop;
  PolicyTrainer fast(served, loop, Rank{0}), slow(served, loop, Rank{1});
  CHECK(fast.pushAll(Version{0}, all(served, -1))->applied());
  ShardPull pull;
  pull.trainer = fast.ref();
  auto read = served.policy->pull(served.shard(0), *fast.lanes()[0], pull, 0, 16).eagerlyEvaluate(nullptr);
  CHECK_FALSE(loop.resolved(read));
  CHECK(slow.pushAll(Version{0}, all(served, -1))->applied());
  CHECK(loop.wait(kj::mv(read)).ok());
}

DEVICE_TEST("delay compensation adds the change of the weights since they were pulled") {
  constexpr const char* kOptions = R"({"delay_compensation": {"lambda": 0.5}})";
  size_t policies = 0;
  for (const PolicyEntry& entry : kPolicyList) {
    if (!takes(entry, kOptions)) continue;
    policies++;
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), kElements, 2, kOptions);
    TestLoop loop;
    PolicyTrainer old(served, loop, Rank{0}), other(served, loop, Rank{1});
    CHECK(allAre(old.pullAll(), 0));
    for (uint64_t i = 0; i < 3; i++) CHECK(other.pushAll(Version{i}, all(served, -1))->applied());
    // Weights are at 3, pulled were 0: −2 + 0.5 · 4 · 3 = 4.
    CHECK(old.pushAll(Version{0}, all(served, -2))->applied());
    CHECK(old.pullAll().front() == -1);
    // For weights that it never pulled it is an ordinary gradient.
    CHECK(other.pushAll(Version{1}, all(served, -2))->applied());
    CHECK(old.pullAll().front() == 1);
    // So is a fresh one.
    CHECK(old.pushAll(Version{5}, all(served, -2))->applied());
    CHECK(old.pullAll().front() == 3);
  }
  CHECK(policies >= 2);
}

DEVICE_TEST("adaptive compensation divides by the root of the mean square of gradients") {
  constexpr const char* kOptions = R"({"delay_compensation": {"lambda": 0.5, "adaptive": true}})";
  for (const PolicyEntry& entry : kPolicyList) {
    if (!takes(entry, kOptions)) continue;
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), kElements, 1, kOptions);
    TestLoop loop;
    PolicyTrainer old(served, loop, Rank{0}), other(served, loop, Rank{1});
    old.pullAll();
    other.pullAll();
    CHECK(other.pushAll(Version{0}, all(served, -1))->applied());
    CHECK(old.pushAll(Version{0}, all(served, -2))->applied());
    const double meanSquare = 0.95 * (0.05 * 1) + 0.05 * 4;
    const double gradient = -2 + 0.5 / std::sqrt(meanSquare + 1e-7) * 4 * 1;
    CHECK(std::abs(old.pullAll().front() - (1 - gradient)) < 1e-5);
  }
}

DEVICE_TEST("compensation makes no weight NaN or infinite, however large a finite gradient is") {
  const char* const options =
      GENERATE(R"({"delay_compensation": {"lambda": 0.04}})", R"({"delay_compensation": {"lambda": 1e9}})",
               R"({"delay_compensation": {"lambda": 2, "adaptive": true}})");
  INFO(options);
  std::vector<float> gradient = testing::finiteValues();
  for (float& each : gradient) each /= 2;  // w − g − g, uncompensated, does not overflow either
  gradient.resize(kElements);
  std::vector<float> opposite = gradient;
  for (float& each : opposite) each = -each;
  for (const PolicyEntry& entry : kPolicyList) {
    if (!takes(entry, options)) continue;
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), kElements, 1, options);
    TestLoop loop;
    PolicyTrainer old(served, loop, Rank{0}), other(served, loop, Rank{1});
    CHECK(allAre(old.pullAll(), 0));
    CHECK(other.pushAll(Version{0}, all(served, 0))->applied());
    // Stale, and no weight has changed.
    CHECK(old.pushAll(Version{0}, gradient)->applied());
    CHECK(old.pullAll() == opposite);
    // Staler, and the weights have changed as much as they can.
    CHECK(old.pushAll(Version{0}, gradient)->applied());
    const auto weights = old.pullAll();
    CHECK(std::all_of(weights.begin(), weights.end(), [](float w) { return std::isfinite(w); }));
  }
}

}  // namespace
}  // namespace psd::policy_modifiers_test
