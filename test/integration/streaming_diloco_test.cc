// Policy diloco in fragments, with steps that continue during a push, with a real daemon: compared with the
// algorithm in plain code, and with the result without fragments.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "test/integration/softmax_trainers.h"
#include "test/support/difference.h"
#include "test/support/holds_soon.h"
#include "test/support/local_servers.h"
#include "trainer/dataset/sharder.h"
#include "trainer/exchange/fragment_exchange.h"

namespace psd::streaming_diloco_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::largestDifference;
using testing::LocalServer;
using testing::LocalServers;
using testing::SoftmaxModel;
using testing::SoftmaxTrainer;
using Values = std::vector<float>;

constexpr uint32_t kBatch = 8, kSamples = 192;
constexpr float kInnerRate = 0.05f, kOuterRate = 0.7f, kMomentum = 0.9f;
const Json kNesterov = {{"type", "sgd"}, {"lr", kOuterRate}, {"momentum", kMomentum}, {"nesterov", true}};

Json configOf(Json policy, const Json& optimizer = kNesterov) {
  policy["type"] = "diloco";
  policy["inner"] = {{"type", "sgd"}, {"lr", kInnerRate}};
  return {{"policy", policy}, {"optimizer", optimizer}, {"shards", 3}, {"threads", 2}};
}

/// A configuration with the settings that rounds over several daemons need, for one daemon.
Json separately(uint32_t daemons, Json config) {
  if (daemons == 1) return config;
  config["policy"]["round_timeout_ms"] = 600'000;
  config["durability"] = {{"type", "log"}};
  return config;
}

struct Trained {
  Values values;
  std::vector<ShardRange> shards;
};

Trained train(const LocalServers& servers, uint32_t count, uint64_t steps) {
  std::vector<std::unique_ptr<SoftmaxTrainer>> learners;
  for (uint32_t rank = 0; rank < count; rank++) {
    const LoopOptions options{{Rank{rank}, count}, kBatch, 1, steps, 1};
    learners.push_back(std::make_unique<SoftmaxTrainer>(servers.last(), kSamples, options));
  }
  const auto shards = learners.front()->info.shards;
  return {testing::trainTogether(learners), shards};
}

/// State of a learner: parameters, its initial ones, and the batches of its rank.
class Learner {
 public:
  Learner(uint32_t rank, uint32_t count) : rank_(rank), count_(count) {}

  void step() {
    const uint64_t perEpoch = kSamples / count_ / kBatch;
    if (steps_ % perEpoch == 0) {
      part_ = Sharder{1, kSamples, Rank{rank_}, count_}.part(steps_ / perEpoch);
    }
    static_cast<void>(data_->fill(std::span(part_).subspan(steps_ % perEpoch * kBatch, kBatch),
                                  batch_));  // data in memory is always there
    steps_++;
    PSD_REQUIRE_OK(model_.computeGradients(batch_, {}));
    for (size_t i = 0; i < w().size(); i++) w()[i] -= kInnerRate * model_.gradients()[i];
  }
  std::span<float> w() { return model_.parameters(); }
  Values start = Values(SoftmaxModel().parameters().size());

 private:
  const uint32_t rank_, count_;
  SoftmaxModel model_;
  std::unique_ptr<Dataset> data_ = makeSynthetic(kSamples, Split::train, 1);
  std::vector<uint32_t> part_;
  Batch batch_;
  uint64_t steps_ = 0;
};

/// Streaming DiLoCo of synchronous learners, in plain code.
class Reference {
 public:
  Reference(uint32_t learners, LocalSteps local, std::vector<ShardRange> shards)
      : local_(local), shards_(std::move(shards)), sent_(local.fragments), fresh_(local.fragments) {
    for (uint32_t rank = 0; rank < learners; rank++) {
      learners_.push_back(std::make_unique<Learner>(rank, learners));
    }
  }

  Values train(uint64_t steps) {
    for (uint64_t step = 1, slot = 0; step <= steps; step++) {
      for (const auto& learner : learners_) learner->step();
      for (uint32_t f = 0; f < local_.fragments; f++) {
        fresh_[f]++;
        if (sent_[f] != 0 && step - sent_[f] == local_.delay) takeOver(f);
      }
      if (step == local_.slotEnd(slot)) send(static_cast<uint32_t>(slot++ % local_.fragments), step);
      // At the end, pushes in flight finish first; then everything computed since is sent.
      for (uint32_t f = 0; step == steps && f < local_.fragments; f++) {
        if (sent_[f] != 0) takeOver(f);
        if (fresh_[f] > 0) send(f, step);
      }
    }
    return theta_;
  }

 private:
  template <class Work>
  void each(uint32_t fragment, Work work) {
    for (const ShardRange& shard : shards_) {
      if (local_.fragments > 1 && shard.group != fragment) continue;
      for (uint64_t i = shard.begin; i < shard.begin + shard.count; i++) work(i);
    }
  }
  void send(uint32_t fragment, uint64_t step) {
    each(fragment, [&](uint64_t i) {
      float mean = 0;
      for (const auto& learner : learners_) {
        mean += (learner->start[i] - learner->w()[i]) / static_cast<float>(learners_.size());
      }
      momentum_[i] = kMomentum * momentum_[i] + mean;
      theta_[i] -= kOuterRate * (mean + kMomentum * momentum_[i]);
    });
    sent_[fragment] = step;
    fresh_[fragment] = 0;
    if (local_.delay == 0) takeOver(fragment);
  }
  void takeOver(uint32_t fragment) {
    const auto blend = static_cast<float>(local_.blend);
    each(fragment, [&](uint64_t i) {
      for (const auto& learner : learners_) {
        learner->w()[i] = blend * learner->w()[i] + (1 - blend) * theta_[i];
        learner->start[i] = theta_[i];
      }
    });
    sent_[fragment] = 0;
    if (blend == 0) fresh_[fragment] = 0;
  }

  const LocalSteps local_;
  const std::vector<ShardRange> shards_;
  std::vector<std::unique_ptr<Learner>> learners_;
  Values theta_ = Values(SoftmaxModel().parameters().size()), momentum_ = theta_;
  std::vector<uint64_t> sent_, fresh_;  // by fragment: the step in which it was sent; steps since
};

TEST_CASE("learners in fragments take the steps of Streaming DiLoCo") {
  struct Case {
    uint32_t learners, fragments, delay;
    double blend;
    uint64_t period, steps;
  };
  for (const Case& one : {Case{1, 2, 0, 0, 6, 36}, Case{2, 2, 0, 0, 5, 33}, Case{2, 2, 2, 0.5, 6, 41},
                          Case{3, 2, 1, 0, 4, 32}, Case{2, 1, 3, 0.25, 6, 40}}) {
    INFO("learners " << one.learners << ", fragments " << one.fragments << ", delay " << one.delay);
    const Json config = configOf({{"period", one.period},
                                  {"fragments", one.fragments},
                                  {"delay", one.delay},
                                  {"blend", one.blend},
                                  {"start_trainers", one.learners}});
    Values byOne;
    for (const uint32_t daemons : {1, 2, 3}) {
      INFO(daemons << " daemon(s)");
      const LocalServers servers(separately(daemons, config), daemons);
      const Trained trained = train(servers, one.learners, one.steps);
      if (daemons == 1) {
        Reference reference(
            one.learners,
            {.period = one.period, .fragments = one.fragments, .delay = one.delay, .blend = one.blend},
            trained.shards);
        CHECK(largestDifference(trained.values, reference.train(one.steps)) < 2e-5);
        byOne = trained.values;
      }
      CHECK(trained.values == byOne);
      for (const auto& server : servers.all()) CHECK(server->status()["counters"]["late_pushes"] == 0);
    }
  }
}

bool alike(double one, double other) { return std::abs(one - other) < 1e-5; }

/// Records the learning rate of each step.
class Rates : public LoopObserver {
 public:
  void onStep(const StepReport& report) override { seen.push_back(report.rate.value_or(-1)); }
  std::vector<double> seen;
};

/// The learning rates of `steps` steps of one learner.
std::vector<double> ratesOf(const LocalServer& server, Rank rank, uint32_t count, uint64_t steps) {
  SoftmaxTrainer learner(server, kSamples, {{rank, count}, kBatch, 1, steps, 1});
  Rates rates;
  PSD_REQUIRE_OK(learner.loop.run({&rates}, [] { return false; }));
  PSD_REQUIRE_OK(learner.client->leave());
  return rates.seen;
}

TEST_CASE("a learner's steps have the rates of the run's schedule, in fragments too") {
  static constexpr uint64_t kWarmUp = 40;
  for (const uint32_t delay : {0, 2}) {
    Json config = configOf({{"period", 6}, {"fragments", 2}, {"delay", delay}});
    config["policy"]["inner"]["schedule"] = {{"warmup_steps", kWarmUp}};
    const LocalServer server(config);
    const auto expected = [](uint64_t step) {
      return static_cast<double>(kInnerRate) * static_cast<double>(std::min(step, kWarmUp)) / kWarmUp;
    };
    const std::vector<double> first = ratesOf(server, Rank{0}, 2, 12);
    REQUIRE(first.size() == 12);
    for (uint64_t step = 1; step <= 12; step++) CHECK(alike(first[step - 1], expected(step)));
    // Both fragments have two rounds, and fragment 0 one of the remainder: slot 5 is the first open one; it
    // starts after step 15.
    const std::vector<double> late = ratesOf(server, Rank{1}, 2, 30);
    REQUIRE(late.size() == 30);
    for (uint64_t step = 1; step <= 30; step++) CHECK(alike(late[step - 1], expected(15 + step)));
    CHECK(alike(late.back(), kInnerRate));  // the warm-up is over
  }
}

TEST_CASE("each fragment has its rounds") {
  const LocalServers servers(configOf({{"period", 6}, {"fragments", 2}, {"start_trainers", 2}}), 1);
  const Trained trained = train(servers, 2, 27);
  const Json status = servers.status();
  REQUIRE(status["rounds"].size() == 2);
  // Slots end at steps 3, 6, 9 …, 27: five of fragment 0 and four of fragment 1, which has one more at the
  // end.
  CHECK(status["rounds"][0]["group"] == "fragment 0");
  CHECK(status["rounds"][0]["closed"] == 5);
  CHECK(status["rounds"][1]["closed"] == 5);
  CHECK(std::ranges::all_of(trained.shards, [](const ShardRange& shard) { return shard.group < 2; }));
}

const ModelSpec kLines{"lines", {{"a", DType::f32, {48}}, {"b", DType::f32, {32}}, {"c", DType::f32, {16}}}};
constexpr uint64_t kElements = 96;  // 48 of fragment 0; 32 and 16 of fragment 1

/// Learners that push the test's values, with several connections each.
class Pushers {
 public:
  Pushers(const LocalServer& server, uint32_t count, uint32_t connections)
      : differences_(count, Values(kElements)) {
    for (uint32_t rank = 0; rank < count; rank++) {
      ClientOptions options;
      options.servers = {server.address()};
      options.chunkBytes = 64;
      options.connections = connections;
      auto client = Client::connect(options);
      PSD_REQUIRE_OK(client);
      const auto info =
          (*client)->join({Rank{rank}, count}, kLines, [this] { return std::span<const float>(zeros_); });
      PSD_REQUIRE_OK(info);
      shards = info->shards;
      clients_.push_back(*std::move(client));
    }
  }

  /// A difference that depends on all of these, computed from the parameters after `round` rounds.
  Pending<PushInfo> push(uint32_t rank, uint64_t round, std::optional<uint32_t> fragment) {
    for (uint64_t i = 0; i < kElements; i++) {
      const bool mine = !fragment || fragmentAt(i) == *fragment;
      if (mine)
        differences_[rank][i] = 0.37f * static_cast<float>(i + 1) / static_cast<float>(rank + round + 3);
    }
    std::vector<Version> basis(shards.size(), Version{round});
    return clients_[rank]->push(Step{++step_}, differences_[rank], {8, 4, fragment}, basis);
  }
  Values values() {
    Values values(kElements);
    PSD_REQUIRE_OK(clients_[0]->pull(values).wait());
    return values;
  }
  Client& operator[](size_t rank) { return *clients_[rank]; }
  static uint32_t fragmentAt(uint64_t element) { return element < 48 ? 0 : 1; }

  std::vector<ShardRange> shards;

 private:
  std::vector<std::unique_ptr<Client>> clients_;
  Values zeros_ = Values(kElements);
  std::vector<Values> differences_;
  uint64_t step_ = 0;
};

void requireApplied(Pending<PushInfo>& push) {
  const auto answer = push.wait();
  PSD_REQUIRE_OK(answer);
  CHECK(answer->outcome == PushOutcome::applied);
}

TEST_CASE("fragments that are pushed together are what the whole is, bit for bit") {
  Json policy = {{"period", 4}, {"start_trainers", 3}};
  LocalServer whole(configOf(policy));
  policy["fragments"] = 2;
  LocalServer divided(configOf(policy));
  Pushers one(whole, 3, 1), other(divided, 3, 1);
  for (uint64_t round = 0; round < 5; round++) {
    std::vector<Pending<PushInfo>> pushes;
    for (uint32_t rank = 0; rank < 3; rank++) {
      pushes.push_back(one.push(rank, round, {}));
      // In the first round as a client without fragments pushes.
      if (round == 0) pushes.push_back(other.push(rank, round, {}));
      for (uint32_t fragment = 0; round > 0 && fragment < 2; fragment++) {
        pushes.push_back(other.push(rank, round, fragment));
      }
    }
    for (auto& push : pushes) requireApplied(push);
  }
  CHECK(one.values() == other.values());
}

TEST_CASE("two fragments are under way at once, in any order, over one connection and over several") {
  for (const uint32_t connections : {1u, 3u}) {
    INFO(connections << " connection(s)");
    LocalServer server(configOf({{"period", 4}, {"fragments", 2}, {"start_trainers", 2}}));
    Pushers learners(server, 2, connections);
    REQUIRE(learners.shards.size() >= 3);
    auto first = learners.push(0, 0, 1), second = learners.push(0, 0, 0);
    CHECK_FALSE(first.done());
    auto third = learners.push(1, 0, 0);
    requireApplied(third);
    requireApplied(second);
    CHECK_FALSE(first.done());
    auto fourth = learners.push(1, 0, 1);
    requireApplied(fourth);
    requireApplied(first);
    Values fragment(kElements, -1);
    const auto pulled = learners[1].pullFragment(fragment, 1).wait();
    PSD_REQUIRE_OK(pulled);
    const Values all = learners.values();
    for (uint64_t i = 0; i < kElements; i++) {
      CHECK(fragment[i] == (Pushers::fragmentAt(i) == 1 ? all[i] : -1));
    }
    for (const ShardRange& shard : learners.shards) {
      CHECK(pulled->versions[shard.id.value].value == shard.group);
    }
  }
}

TEST_CASE("a learner takes its steps while a push is unanswered, until the delay is over") {
  LocalServer server(
      configOf({{"period", 6}, {"fragments", 2}, {"delay", 2}, {"blend", 0.5}, {"start_trainers", 2}}));
  Pushers learners(server, 2, 1);
  FragmentExchange exchange(learners[0], {.period = 6, .fragments = 2, .delay = 2, .blend = 0.5},
                            learners.shards, {[](const PushInfo&) {}, [] {}});
  Values own(kElements), spare(kElements);
  PSD_REQUIRE_OK(exchange.begin(own, spare));
  std::atomic<int> taken = 0;
  Status end;
  std::thread steps([&] {
    for (int step = 1; end.ok() && step <= 5; step++) {
      for (float& value : own) value -= 1;
      exchange.stepped(8);
      if (exchange.due(false)) end = exchange.exchange(false);
      taken = step;
    }
  });
  // Fragment 0 is pushed at the end of step 3, and its result is awaited at the end of step 5.
  const bool overlaps = testing::holdsSoon([&] { return taken == 4; });
  Json rounds;
  const bool arrived = testing::holdsSoon([&] {
    rounds = server.status()["rounds"];
    return rounds[0]["contributed"] == Json::array({0});
  });
  const bool answered = rounds[0]["closed"] != 0;
  auto other = learners.push(1, 0, 0);
  steps.join();
  PSD_REQUIRE_OK(end);
  requireApplied(other);
  CHECK(overlaps);
  CHECK(arrived);
  CHECK_FALSE(answered);
  // Half of its five steps, and half of the parameters that resulted from three of them.
  const Values theta = learners.values();
  for (uint64_t i = 0; i < kElements; i++) {
    const bool mine = Pushers::fragmentAt(i) == 0;
    CHECK(alike(own[i], mine ? 0.5f * -5 + 0.5f * theta[i] : -5));
  }
}

TEST_CASE("a learner missing in a fragment's round is notified of that one") {
  LocalServer server(configOf(
      {{"period", 4}, {"fragments", 2}, {"start_trainers", 2}, {"quorum", 1}, {"grace_ms", 60'000}}));
  Pushers learners(server, 2, 1);
  const std::vector<Version> begin(learners.shards.size());
  auto ofFirst = learners[1].fragmentDue(begin, 0), ofSecond = learners[1].fragmentDue(begin, 1);
  auto push = learners.push(0, 0, 1);
  const auto told = ofSecond.wait();
  PSD_REQUIRE_OK(told);
  CHECK(*told == RoundDue::closing);
  CHECK_FALSE(ofFirst.done());
  auto other = learners.push(1, 0, 1);
  requireApplied(other);
  requireApplied(push);
}

TEST_CASE("learners that pull differences hold the same bits, in a fraction of the bytes") {
  struct Case {
    uint32_t fragments, daemons;
  };
  for (const auto& [fragments, daemons] : {Case{1, 1}, Case{2, 1}, Case{1, 2}, Case{2, 3}}) {
    INFO(fragments << " fragment(s), " << daemons << " daemon(s)");
    const Json config =
        configOf({{"period", 4}, {"fragments", fragments}, {"start_trainers", 2}, {"deltas", "e3m0"}});
    const LocalServers servers(separately(daemons, config), daemons);
    const LocalServer& server = servers.lead();
    std::vector<std::unique_ptr<SoftmaxTrainer>> learners;
    for (uint32_t rank = 0; rank < 2; rank++) {
      const LoopOptions options{{Rank{rank}, 2}, kBatch, 1, 80, 1};
      learners.push_back(std::make_unique<SoftmaxTrainer>(server, kSamples, options));
    }
    CHECK(learners[0]->info.pullCodec == "deltas in e3m0");
    std::vector<Status> ends(learners.size());  // Catch2's macros are for one thread
    std::vector<std::thread> threads;
    for (size_t i = 0; i < learners.size(); i++) {
      threads.emplace_back([&, i] { ends[i] = learners[i]->loop.run({}, [] { return false; }).status(); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& end : ends) PSD_REQUIRE_OK(end);
    const uint64_t whole = learners[0]->model.parameters().size_bytes();
    // The model once, then a pull of each fragment in each of twenty rounds.
    CHECK(learners[0]->client->bytesPulled() < whole + 22 * whole / 6);
    std::vector<Values> views(2, Values(whole / sizeof(float)));
    for (size_t i = 0; i < 2; i++) PSD_REQUIRE_OK(learners[i]->client->pull(views[i]).wait());
    CHECK(views[0] == views[1]);
    // A trainer that joins now has the same values as all others; a reader has the daemon's own.
    ClientOptions options;
    options.servers = {server.address()};
    options.chunkBytes = 4 << 10;
    auto reader = Client::connect(options);
    PSD_REQUIRE_OK(reader);
    PSD_REQUIRE_OK((*reader)->observe(SoftmaxModel().spec()));
    Values own(views[0].size());
    PSD_REQUIRE_OK((*reader)->pull(own).wait());
    CHECK(own != views[0]);
    CHECK(largestDifference(own, views[0]) < 0.05);
    PSD_REQUIRE_OK(learners[1]->client->leave());
    const LoopOptions again{{Rank{1}, 2}, kBatch, 1, 1, 1};
    SoftmaxTrainer late(server, kSamples, again);
    PSD_REQUIRE_OK(late.client->pull(views[1]).wait());
    CHECK(views[0] == views[1]);
  }
}

TEST_CASE("a trainer's own pull codec is refused where pulls are differences") {
  LocalServer server(configOf({{"period", 4}, {"deltas", "int8"}}));
  ClientOptions options;
  options.servers = {server.address()};
  options.pullCodec = "bf16";
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  const Values zeros(kElements);
  const auto info = (*client)->join({Rank{0}, 1}, kLines, [&] { return std::span<const float>(zeros); });
  CHECK(info.message() ==
        "pulls: a trainer's own codec cannot be combined with the daemon's policy.deltas, by which they are "
        "differences in int8");
}

TEST_CASE("a fragment that is not there is refused by the client") {
  LocalServer server(configOf({{"period", 4}, {"fragments", 2}}));
  Pushers learners(server, 1, 1);
  const auto answer = learners.push(0, 0, 2).wait();
  CHECK(answer.message() == "there is no fragment 2, the model has 2");
  Values values(kElements);
  CHECK(learners[0].pullFragment(values, 7).wait().message() == "there is no fragment 7, the model has 2");
}

TEST_CASE("a model with fewer tensors than fragments is refused") {
  LocalServer server(configOf({{"period", 4}, {"fragments", 4}}));
  auto client = testing::clientOfSmallSlices(server);
  const Values zeros(kElements);
  const auto info = client->join({Rank{0}, 1}, kLines, [&] { return std::span<const float>(zeros); });
  CHECK(info.message() ==
        "policy.fragments: 4, and model 'lines' has 3 tensors, each of which is in one of them; take fewer");
}

}  // namespace
}  // namespace psd::streaming_diloco_test
