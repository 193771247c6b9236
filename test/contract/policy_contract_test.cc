// The contract of every update policy, whatever it decides about consistency. A policy joins by its line in
// policy_list.h; its promises beyond the contract depend on its PolicyTraits alone. Those that work by
// rounds: policy_rounds_test.cc. Promises of a single policy: policy_promises_test.cc.

#include <algorithm>
#include <cmath>
#include <vector>

#include "test/contract/policy_trainer.h"

namespace psd::policy_contract_test {
namespace {

using testing::allAre;
using testing::asynchronousPolicies;
using testing::firstDifference;
using testing::PolicyTrainer;
using testing::Pulled;
using testing::Pushed;
using testing::Random;
using testing::randomPieces;
using testing::runOnThreads;
using testing::ServedStore;
using testing::subtracting;
using testing::TestLoop;
using testing::Update;
using testing::wholeShard;

/// The expected values of a shard: the optimizer's step, element by element, in one thread.
class Reference {
 public:
  Reference(Optimizer optimizer, size_t elements)
      : optimizer_(std::move(optimizer)), weights_(elements), slots_(optimizer_.slotCount()) {
    for (size_t s = 0; s < slots_.size(); s++) slots_[s].assign(elements, optimizer_.slots()[s].initialValue);
  }

  void apply(const std::vector<float>& gradient) {
    number_++;
    optimizer_.visitStep({number_, optimizer_.learningRate(number_)}, [&]<class Step>(const Step& step) {
      for (size_t i = 0; i < weights_.size(); i++) {
        float values[Step::kSlots + 1] = {};
        for (size_t s = 0; s < Step::kSlots; s++) values[s] = slots_[s][i];
        step(weights_[i], gradient[i], values);
        for (size_t s = 0; s < Step::kSlots; s++) slots_[s][i] = values[s];
      }
    });
  }
  const std::vector<float>& weights() const { return weights_; }

 private:
  Optimizer optimizer_;
  uint64_t number_ = 0;
  std::vector<float> weights_;
  std::vector<std::vector<float>> slots_;
};

std::vector<float> randomGradient(size_t elements, Random& random) {
  std::normal_distribution<float> normal;
  std::vector<float> gradient(elements);
  for (float& value : gradient) value = normal(random.engine());
  return gradient;
}

std::vector<std::pair<const char*, Optimizer>> optimizers() {
  Optimizer momentum;
  momentum.algorithm = Sgd{.momentum = 0.9, .dampening = 0.1, .weightDecay = 1e-2};
  Optimizer adam;
  adam.algorithm = Adam{};
  adam.fullLearningRate = 1e-3;
  Optimizer scheduled = adam;
  scheduled.schedule.type = Schedule::Type::cosine;
  scheduled.schedule.warmupUpdates = 3;
  scheduled.schedule.totalUpdates = 8;
  return {{"momentum", momentum}, {"adam", adam}, {"adam with a schedule", scheduled}};
}

Version pushWhole(PolicyTrainer& trainer, ServedStore& served, size_t shard) {
  const std::vector<float> gradient(served.shard(shard).range().count, -1.f);
  const Pushed pushed = trainer.push(shard, {}, gradient, wholeShard(served.shard(shard)));
  REQUIRE_FALSE(pushed.failed);
  REQUIRE(pushed.applied == 1);
  return pushed.last.version;
}

DEVICE_TEST("a policy has the name that configurations choose it by") {
  for (const PolicyEntry& entry : kPolicyList) {
    CHECK(ServedStore(device.make(), entry, subtracting(), 16, 1).policy->name() == entry.type);
  }
}

DEVICE_TEST("pushes in one slice or many give the optimizer's result bit for bit") {
  for (const PolicyEntry& entry : asynchronousPolicies()) {
    for (const auto& [name, optimizer] : optimizers()) {
      for (uint64_t seed = 1; seed <= 10; seed++) {
        INFO(entry.type << ", " << name << ", seed " << seed);
        Random random(seed);
        ServedStore served(device.make(), entry, optimizer, random.between(1, 3000),
                           static_cast<uint32_t>(random.between(1, 4)));
        TestLoop loop;
        PolicyTrainer trainer(served, loop);
        for (size_t s = 0; s < served.store->shardCount(); s++) {
          Shard& shard = served.shard(s);
          Reference reference(optimizer, shard.range().count);
          for (uint64_t number = 1, last = random.between(1, 12); number <= last; number++) {
            const auto gradient = randomGradient(shard.range().count, random);
            const auto pieces = random.oneIn(3) ? wholeShard(shard) : randomPieces(shard, random);
            const Pushed pushed = trainer.push(s, shard.version(), gradient, pieces, random.oneIn(2));
            REQUIRE_FALSE(pushed.failed);
            REQUIRE(pushed.applied == 1);
            REQUIRE(pushed.last.version == Version{number});
            REQUIRE(pushed.last.staleness == 0);
            reference.apply(gradient);
          }
          const Pulled pulled = trainer.pull(s, randomPieces(shard, random));
          REQUIRE_FALSE(pulled.failed);
          REQUIRE(firstDifference(pulled.values, reference.weights()) == std::nullopt);
          for (Version version : pulled.versions) REQUIRE(version == shard.version());
        }
      }
    }
  }
}

DEVICE_TEST("a pull shows what was pushed, shard by shard") {
  for (const PolicyEntry& entry : asynchronousPolicies()) {
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), 1000, 3);
    TestLoop loop;
    PolicyTrainer writer(served, loop), reader(served, loop);
    Random random(1);
    for (uint64_t updates = 1; updates <= 3; updates++) {
      for (size_t s = 0; s < 3; s++) {
        for (size_t other = 0; other < 3; other++) {
          const Pulled pulled = reader.pull(other, randomPieces(served.shard(other), random));
          const uint64_t expected = updates - (other < s ? 0 : 1);
          REQUIRE_FALSE(pulled.failed);
          REQUIRE(allAre(pulled.values, expected));
          for (Version version : pulled.versions) REQUIRE(version == Version{expected});
        }
        pushWhole(writer, served, s);
      }
    }
  }
}

DEVICE_TEST("an incomplete update is never counted") {
  for (const PolicyEntry& entry : asynchronousPolicies()) {
    for (uint64_t seed = 1; seed <= 10; seed++) {
      INFO(entry.type << ", seed " << seed);
      Random random(seed);
      ServedStore served(device.make(), entry, subtracting(), random.between(17, 2000), 1);
      Shard& shard = served.shard(0);
      TestLoop loop;
      PolicyTrainer trainer(served, loop), other(served, loop);
      const std::vector<float> gradient(shard.range().count, -1.f);
      auto pieces = randomPieces(shard, random);
      if (pieces.size() == 1) pieces = {{0, 16}, {16, shard.range().count - 16}};
      Update update(served, trainer.lanes(), 0, {}, gradient);
      for (size_t i = 0; i + 1 < pieces.size(); i++) {
        const auto answer = loop.wait(update.send(pieces[i]));
        PSD_REQUIRE_OK(answer);
        REQUIRE_FALSE(answer->applied());
        REQUIRE(shard.version() == Version{i});  // the result of the other trainer's update
        REQUIRE(pushWhole(other, served, 0) == Version{i + 1});
      }
      const uint64_t others = pieces.size() - 1;
      if (seed % 2 == 0) {  // it may be abandoned
        REQUIRE(pushWhole(other, served, 0) == Version{others + 1});
        continue;
      }
      const auto answer = loop.wait(update.send(pieces.back()));
      PSD_REQUIRE_OK(answer);
      REQUIRE(answer->applied());
      REQUIRE(answer->version == Version{others + 1});
      const Pulled pulled = trainer.pull(0, wholeShard(shard));
      REQUIRE(allAre(pulled.values, others + 1));
    }
  }
}

DEVICE_TEST("staleness is the number of updates between the basis and the push") {
  for (const PolicyEntry& entry : asynchronousPolicies()) {
    for (uint64_t seed = 1; seed <= 10; seed++) {
      INFO(entry.type << ", seed " << seed);
      Random random(seed);
      ServedStore served(device.make(), entry, subtracting(), 500, 2);
      TestLoop loop;
      PolicyTrainer slow(served, loop), fast(served, loop);
      for (int round = 0; round < 5; round++) {
        const size_t s = random.below(2);
        Shard& shard = served.shard(s);
        const Version basis = slow.pull(s, randomPieces(shard, random)).versions.front();
        const uint64_t between = random.between(0, 5);
        for (uint64_t i = 0; i < between; i++) pushWhole(fast, served, s);
        pushWhole(fast, served, 1 - s);  // another shard's updates make no difference
        const std::vector<float> gradient(shard.range().count, -1.f);
        const Pushed pushed = slow.push(s, basis, gradient, randomPieces(shard, random), random.oneIn(2));
        REQUIRE(pushed.applied == 1);
        REQUIRE(pushed.last.staleness == between);
        REQUIRE(pushed.last.version == Version{basis.value + between + 1});
      }
    }
  }
}

DEVICE_TEST("each policy supports what its line in the list of policies says") {
  for (const PolicyEntry& entry : kPolicyList) {
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), 64, 1);
    if (entry.traits.tables) CHECK(served.policy->rows() != nullptr);  // Sync has rows under any name
    CHECK((served.policy->rounds() != nullptr) == entry.traits.rounds);
    CHECK(served.policy->properties().readsLive == entry.traits.readsLive);
    CHECK(served.policy->properties().takesDifferences == entry.traits.differences);
  }
}

DEVICE_TEST("a basis that no shard has reached is not stale") {
  for (const PolicyEntry& entry : asynchronousPolicies()) {
    INFO(entry.type);
    ServedStore served(device.make(), entry, subtracting(), 64, 1);
    TestLoop loop;
    PolicyTrainer trainer(served, loop);
    const std::vector<float> gradient(64, -1.f);
    const Pushed pushed = trainer.push(0, Version{UINT64_MAX}, gradient, wholeShard(served.shard(0)));
    REQUIRE(pushed.applied == 1);
    CHECK(pushed.last.staleness == 0);
  }
}

constexpr size_t kThreads = 4;
constexpr uint64_t kUpdates = 150;  // of each thread, per shard

/// One thread's observations; a count of the violations.
struct Witness {
  std::vector<std::vector<uint64_t>> versions;  // per shard, those that its pushes made
  uint64_t failures = 0, wrongValues = 0, wrongVersions = 0, wrongStaleness = 0;
};

/// Alternating pulls and pushes; every update adds 1 to every weight.
void train(ServedStore& served, TestLoop& loop, Random random, Witness& witness) {
  PolicyTrainer trainer(served, loop);
  const size_t shards = served.store->shardCount();
  witness.versions.resize(shards);
  std::vector<uint64_t> newest(shards);
  for (uint64_t i = 0; i < kUpdates; i++) {
    for (size_t s = 0; s < shards; s++) {
      Shard& shard = served.shard(s);
      const Pulled pulled = trainer.pull(s, randomPieces(shard, random));
      witness.failures += pulled.failed;
      uint64_t basis = UINT64_MAX;
      for (Version version : pulled.versions) {
        witness.wrongVersions += version.value < newest[s];  // versions never decrease
        basis = std::min(basis, version.value);
      }
      newest[s] = std::max(newest[s], basis);
      for (float value : pulled.values) {
        witness.wrongValues += !(value >= 0 && value <= kThreads * kUpdates && value == std::floor(value));
      }
      const std::vector<float> gradient(shard.range().count, -1.f);
      const Pushed pushed =
          trainer.push(s, Version{basis}, gradient, randomPieces(shard, random), random.oneIn(2));
      witness.failures += pushed.failed || pushed.applied != 1;
      const uint64_t made = pushed.last.version.value;
      witness.versions[s].push_back(made);
      witness.wrongVersions += made <= newest[s];
      witness.wrongStaleness += pushed.last.staleness > made - 1 - basis;
      newest[s] = made;
    }
  }
}

DEVICE_TEST("concurrent pushes end within the provable bounds") {
  for (const PolicyEntry& entry : asynchronousPolicies()) {
    for (uint64_t seed = 1; seed <= 2; seed++) {
      INFO(entry.type << ", seed " << seed);
      ServedStore served(device.make(), entry, subtracting(), 3000, 2);
      std::vector<Witness> witnesses(kThreads);
      REQUIRE(runOnThreads(kThreads, [&](TestLoop& loop, size_t index) {
        train(served, loop, Random(seed * 100 + index), witnesses[index]);
      }));
      for (const Witness& witness : witnesses) {
        CHECK(witness.failures == 0);
        CHECK(witness.wrongValues == 0);
        CHECK(witness.wrongVersions == 0);
        CHECK(witness.wrongStaleness == 0);
      }
      TestLoop loop;
      PolicyTrainer reader(served, loop);
      for (size_t s = 0; s < 2; s++) {
        std::vector<uint64_t> made, expected;
        for (const Witness& witness : witnesses) {
          made.insert(made.end(), witness.versions[s].begin(), witness.versions[s].end());
        }
        std::sort(made.begin(), made.end());
        for (uint64_t v = 1; v <= kThreads * kUpdates; v++) expected.push_back(v);
        CHECK(made == expected);  // every update made one version, whatever happened to its values
        const Pulled pulled = reader.pull(s, wholeShard(served.shard(s)));
        CHECK(pulled.versions == std::vector<Version>{Version{kThreads * kUpdates}});
        // An update can be lost to another's older value, but the last to write had read a value of at least
        // 1, since that thread itself had written before.
        const auto [least, most] = std::minmax_element(pulled.values.begin(), pulled.values.end());
        CHECK(*least >= 2);
        CHECK(*most <= kThreads * kUpdates);
      }
    }
  }
}

DEVICE_TEST("the hyperparameters of a push make its step, run by run") {
  std::vector<PolicyEntry> entries = asynchronousPolicies();
  entries.push_back(testing::entryOf("sync"));
  for (const PolicyEntry& entry : entries) {
    INFO(entry.type << " " << entry.summary);
    ServedStore served(device.make(), entry, subtracting(), 100, 1);
    TestLoop loop;
    PolicyTrainer trainer(served, loop);
    const uint64_t count = served.shard(0).range().count;
    Update update(served, trainer.lanes(), 0, {}, std::vector<float>(count, -1.f), trainer.ref(), Step{1});
    update.hyperparameters(std::make_shared<const Hyperparameters>(
        Hyperparameters{{{0.5, 0, 0, 0}, {0.25, 0, 0, 0}}, {{16, 0}, {48, 1}, {64, 0, false}, {count, 1}}}));
    PSD_REQUIRE_OK(loop.wait(update.send({0, 32})));
    PSD_REQUIRE_OK(loop.wait(update.send({32, count - 32})));
    const Pulled pulled = trainer.pull(0, wholeShard(served.shard(0)));
    for (uint64_t i = 0; i < count; i++) {
      INFO("element " << i);
      // Another trainer of a round may have a gradient where this one has none.
      const float withoutGradient = entry.traits.rounds ? 0.5f : 0.f;
      REQUIRE(pulled.values[i] == (i < 16 ? 0.5f : i >= 48 && i < 64 ? withoutGradient : 0.25f));
    }
  }
}

}  // namespace
}  // namespace psd::policy_contract_test
