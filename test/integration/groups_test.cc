// Parameter groups: each with its own policy and optimizer, in one model and one push.

#include <algorithm>
#include <vector>

#include "common/types/model_layout.h"
#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"

namespace psd::groups_test {
namespace {

using Json = nlohmann::ordered_json;

const ModelSpec kModel{"net",
                       {{"conv.weight", DType::f32, {3, 40}},
                        {"fc1.weight", DType::f32, {50, 60}},
                        {"fc1.bias", DType::f32, {50}},
                        {"out", DType::f32, {7}}}};

std::unique_ptr<Client> joined(const testing::LocalServer& server, Rank rank, uint32_t worldSize,
                               const std::vector<float>& initial) {
  ClientOptions options;
  options.servers = {server.address()};
  options.chunkBytes = 4 << 10;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  auto info = (*client)->join({rank, worldSize}, kModel, [&] { return std::span<const float>(initial); });
  PSD_REQUIRE_OK(info);
  CHECK(info->policy == "fc*: locked, *.weight: hogwild, others: locked");
  return std::move(*client);
}

TEST_CASE("Groups: each tensor goes by its own group's policy and optimizer") {
  const Json config = {{"policy", {{"type", "locked"}}},
                       {"optimizer", {{"type", "sgd"}, {"lr", 1}}},
                       {"shards", 3},
                       {"groups",
                        {{{"match", "fc*"}, {"optimizer", {{"type", "sgd"}, {"lr", 2}}}},
                         {{"match", {"*.weight"}},
                          {"policy", {{"type", "hogwild"}}},
                          {"optimizer", {{"type", "sgd"}, {"lr", 4}}}}}}};
  testing::LocalServer server(config);
  const ModelLayout layout(kModel);
  const std::vector<float> zeros(layout.totalElements());
  auto first = joined(server, Rank{0}, 2, zeros), second = joined(server, Rank{1}, 2, zeros);

  std::vector<float> gradient(layout.totalElements());
  for (const TensorPlace& place : layout.places())
    std::fill_n(gradient.begin() + place.begin, place.count, -1.f);
  for (uint64_t step = 1; step <= 3; step++) {
    for (Client* client : {first.get(), second.get()}) {
      auto pushed = client->push(Step{step}, gradient, 1, {}).wait();
      PSD_REQUIRE_OK(pushed);
      CHECK(pushed->outcome == PushOutcome::applied);
    }
  }
  std::vector<float> values(layout.totalElements());
  PSD_REQUIRE_OK(first->pull(values).wait());
  const float rates[] = {4, 2, 2, 1};
  for (size_t tensor = 0; tensor < 4; tensor++) {
    const TensorPlace& place = layout.places()[tensor];
    INFO(kModel.tensors[tensor].name);
    for (uint64_t i = place.begin; i < place.begin + place.count; i++)
      REQUIRE(values[i] == 6 * rates[tensor]);
  }

  const Json status = server.status();
  CHECK(status["policy"] == "fc*: locked, *.weight: hogwild, others: locked");
  std::vector<std::string> groups;
  for (const Json& shard : status["shards"]) groups.push_back(shard["group"]);
  CHECK(groups == std::vector<std::string>{"*.weight", "fc*", "others"});
  CHECK(status["counters"]["updates"] == 6 * 3);
  CHECK(status["waiting"].empty());
  CHECK(status["staged_bytes"] == 0);
}

TEST_CASE("Groups: a model in which a group has no tensor is refused") {
  const Json config = {{"groups", {{{"match", "fc*"}}, {{"match", "embedding*"}}}}};
  testing::LocalServer server(config);
  ClientOptions options;
  options.servers = {server.address()};
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  auto info = (*client)->join({Rank{0}, 1}, kModel, [] { return std::span<const float>(); });
  REQUIRE_FALSE(info.ok());
  CHECK(info.error().code == ErrorCode::invalidArgument);
  CHECK(
      info.error().message ==
      "groups[1].match: embedding* matches no tensor of model 'net', whose tensors are conv.weight ... out");
}

TEST_CASE(
    "Groups: a slice for which there is no room comes again, and nothing is applied twice or unwritten") {
  const uint64_t half = testing::kElements / 2;
  const ModelSpec model{"two", {{"clipped", DType::f32, {half}}, {"free", DType::f32, {half}}}};
  // Memory for one gathered shard: the pool allocates whole pieces of 64 KiB.
  const Json config = {
      {"shards", 2},
      {"policy", {{"type", "locked"}}},
      {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
      {"groups", {{{"match", "clipped"}, {"policy", {{"type", "locked"}, {"clip", {{"norm", 1e6}}}}}}}},
      {"limits", {{"slice_bytes", testing::kSliceMost * 4}, {"staged_bytes", 65536}}}};
  testing::LocalServer server(config);
  auto io = kj::setupAsyncIo();
  testing::RawTrainer one(io, server, 0, 2, {.model = model}), other(io, server, 1, 2, {.model = model});
  one.initializeZeros();
  PSD_REQUIRE_OK(other.awaitModel());
  CHECK(one.pushShard(0, -1).outcome == schema::PushOutcome::RECEIVED);  // applied when the step is complete
  const std::vector<float> first(1008, -2.f), rest(992, -2.f);
  PSD_REQUIRE_OK(other.push({.shard = 1}, first));  // exhausts the memory
  const Status refused = one.push({.shard = 1}, std::vector<float>(1008, -1.f));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  PSD_REQUIRE_OK(other.push({.shard = 1, .offset = 1008}, rest));
  // There is memory again: the rejected slice is still missing.
  const std::vector<float> mine(992, -1.f);
  auto answer = one.answerTo({.shard = 1, .offset = 1008}, testing::dataOf(mine));
  REQUIRE(answer.isAccepted());
  CHECK(answer.getAccepted().getOutcome() == schema::PushOutcome::RECEIVED);
  CHECK(server.status()["shards"][1]["version"] == 1);
  const std::vector<float> again(1008, -1.f);
  answer = one.answerTo({.shard = 1}, testing::dataOf(again));
  REQUIRE(answer.isAccepted());
  CHECK(answer.getAccepted().getOutcome() == schema::PushOutcome::APPLIED);
  CHECK(server.status()["shards"][0]["version"] == 1);
  CHECK(server.status()["shards"][1]["version"] == 2);
  CHECK(one.values(0) == std::vector<float>(half, 1.f));
  CHECK(one.values(1) == std::vector<float>(half, 3.f));
}

TEST_CASE(
    "Groups: what a round holds of a trainer that was lost before the other groups had theirs counts once") {
  const uint64_t half = testing::kElements / 2;
  const ModelSpec model{"two", {{"rounds", DType::f32, {half}}, {"free", DType::f32, {half}}}};
  const Json config = {{"policy", {{"type", "sync"}}},
                       {"shards", 2},
                       {"optimizer", {{"type", "sgd"}, {"lr", 1}}},
                       {"membership", {{"grace_ms", 0}}},
                       {"groups", {{{"match", "free"}, {"policy", {{"type", "hogwild"}}}}}}};
  for (const bool closedMeanwhile : {false, true}) {
    INFO("the round closes " << (closedMeanwhile ? "before" : "after") << " the trainer's return");
    const testing::LocalServer server(config);
    ClientOptions options;
    options.servers = {server.address()};
    auto other = Client::connect(options);
    PSD_REQUIRE_OK(other);
    std::vector<float> values(testing::kElements);
    PSD_REQUIRE_OK((*other)->join({Rank{0}, 2}, model, [&] { return std::span<const float>(values); }));
    const auto closeRound = [&] {
      const std::vector<float> ones(testing::kElements, -1.f);
      auto pushed = (*other)->push(Step{1}, ones, 1, {}).wait();
      PSD_REQUIRE_OK(pushed);
      CHECK(pushed->outcome == PushOutcome::applied);
    };
    auto io = kj::setupAsyncIo();
    const testing::RawTrainer::Pushed received{schema::PushOutcome::RECEIVED},
        applied{schema::PushOutcome::APPLIED};
    uint64_t daemon = 0;
    {
      testing::RawTrainer before(io, server, 1, 2, {.incarnation = 7, .model = model});
      daemon = before.daemon();
      CHECK(before.pushShard(0, -3) == received);
    }
    server.statusWhen([](const Json& status) { return status["trainers_lost"] == 1; });
    if (closedMeanwhile) closeRound();
    testing::RawTrainer after(io, server, 1, 2, {.incarnation = 7, .daemon = daemon, .model = model});
    CHECK(after.pushShard(0, -3) == received);
    if (!closedMeanwhile) closeRound();
    CHECK(after.pushShard(1, -3) == applied);

    PSD_REQUIRE_OK((*other)->pull(values).wait());
    CHECK(std::count(values.begin(), values.begin() + half, 2.f) == half);  // the mean of 1 and 3
    CHECK(std::count(values.begin() + half, values.end(), 4.f) == half);    // both, one after the other
    CHECK(server.status()["counters"]["repeated_slices"] == 2);
  }
}

}  // namespace
}  // namespace psd::groups_test
