// Parameter groups: each with its own policy and optimizer, in one model and one push.

#include <vector>

#include "common/types/model_layout.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/client.h"

namespace psd {
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

}  // namespace
}  // namespace psd
