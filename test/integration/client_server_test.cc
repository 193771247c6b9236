// Client and daemon in one process, over TCP: pulls return what was pushed.

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "common/types/model_layout.h"
#include "test/support/async_backend.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/random.h"
#include "trainer/client/api/client.h"

namespace psd::client_server_test {
namespace {

using Json = nlohmann::ordered_json;

// With a learning rate of 1, small integers and few pushes, every value is an integer that float32 represents
// exactly, so that results can be compared bit by bit.
constexpr int kGradientMost = 8;

Json configOf(const std::string& policy, uint32_t shards) {
  return {{"policy", {{"type", policy}}},
          {"shards", shards},
          {"threads", 2},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}}};
}

ModelSpec modelOf(const std::vector<std::vector<uint64_t>>& shapes) {
  ModelSpec model{"test", {}};
  for (size_t i = 0; i < shapes.size(); i++) {
    model.tensors.push_back({"t" + std::to_string(i), DType::f32, shapes[i]});
  }
  return model;
}

/// An arena of small integers that depend on the position and on `salt`; zero in the padding.
std::vector<float> integers(const ModelSpec& model, uint64_t salt) {
  ModelLayout layout(model);
  std::vector<float> values(layout.totalElements());
  for (const TensorPlace& place : layout.places()) {
    for (uint64_t i = place.begin; i < place.begin + place.count; i++) {
      values[i] = static_cast<float>((i * 7 + salt * 13) % (2 * kGradientMost + 1)) - kGradientMost;
    }
  }
  return values;
}

void subtract(std::vector<float>& from, const std::vector<float>& what) {
  for (size_t i = 0; i < from.size(); i++) from[i] -= what[i];
}

std::unique_ptr<Client> connectTo(const testing::LocalServer& server, uint64_t chunkBytes = 64 << 10,
                                  uint32_t window = 4) {
  ClientOptions options;
  options.servers = {server.address()};
  options.chunkBytes = chunkBytes;
  options.window = window;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  return std::move(*client);
}

JoinInfo joinAs(Client& client, Membership membership, const ModelSpec& model,
                const std::vector<float>& initial) {
  auto info = client.join(membership, model, [&] { return std::span<const float>(initial); });
  PSD_REQUIRE_OK(info);
  return *info;
}

std::vector<float> pulled(Client& client, const ModelSpec& model) {
  std::vector<float> values(ModelLayout(model).totalElements(), std::numeric_limits<float>::quiet_NaN());
  PSD_REQUIRE_OK(client.pull(values).wait());
  return values;
}

std::vector<uint64_t> versions(const testing::LocalServer& server) {
  std::vector<uint64_t> found;
  const Json status = server.status();
  for (const Json& shard : status["shards"]) found.push_back(shard["version"].get<uint64_t>());
  return found;
}

uint64_t counter(const testing::LocalServer& server, const char* name) {
  return server.status()["counters"][name].get<uint64_t>();
}

/// The versions of shards that all have the same version.
std::vector<Version> allAt(const JoinInfo& info, uint64_t version) {
  return std::vector<Version>(info.shardCount, Version{version});
}

/// Pushes twice with a client of its own, and compares the pulled values with the same computation by hand.
void trainAndCompare(const testing::LocalServer& server, const ModelSpec& model, std::vector<float>& expected,
                     uint64_t chunkBytes, uint32_t window) {
  auto client = connectTo(server, chunkBytes, window);
  JoinInfo info = joinAs(*client, {Rank{0}, 1}, model, expected);
  uint64_t before = info.initializedModel ? 0 : versions(server).front();
  CHECK(pulled(*client, model) == expected);
  for (uint64_t step = 1; step <= 2; step++) {
    auto gradient = integers(model, step + window);
    auto push = client->push(Step{step}, gradient, 32, allAt(info, before + step - 1)).wait();
    PSD_REQUIRE_OK(push);
    CHECK(push->versions == allAt(info, before + step));
    CHECK(push->staleness == 0);
    subtract(expected, gradient);
    CHECK(pulled(*client, model) == expected);
  }
  uint64_t bytes = expected.size() * sizeof(float);
  CHECK(client->bytesPulled() == 3 * bytes);
  CHECK(client->bytesPushed() == 2 * bytes);
  PSD_REQUIRE_OK(client->leave());
}

}  // namespace

TEST_CASE("Client and server: what is pulled is what was pushed") {
  const std::vector<std::vector<std::vector<uint64_t>>> models = {
      {{}},                        // one scalar
      {{16}},                      // exactly one grain
      {{17}, {1}, {3, 5}},         // padding after each
      {{1023}, {2, 513}, {4, 1}},  // more than one 4 KiB slice
      {{300, 333}, {10}},          // several slices of every size below 1 MiB
      {{1u << 19}, {7}},           // several slices of 1 MiB
  };
  for (const std::string policy : {"hogwild", "locked"}) {
    for (uint32_t shards = 1; shards <= 4; shards++) {
      for (const auto& shapes : models) {
        const ModelSpec model = modelOf(shapes);
        testing::LocalServer server(configOf(policy, shards));
        std::vector<float> expected = integers(model, 0);
        for (uint64_t chunkBytes : {4ull << 10, 64ull << 10, 1ull << 20}) {
          for (uint32_t window : {1u, 8u}) {
            INFO(policy << ", " << shards << " shards, " << model.parameterCount()
                        << " parameters, chunks of " << chunkBytes << ", window " << window);
            trainAndCompare(server, model, expected, chunkBytes, window);
          }
        }
      }
    }
  }
}

TEST_CASE("Client and server: joining tells what the daemon is") {
  const ModelSpec model = modelOf({{40}, {8}});
  testing::LocalServer server(configOf("locked", 3));
  auto first = connectTo(server), second = connectTo(server);
  auto initial = integers(model, 3), other = integers(model, 4);
  JoinInfo info = joinAs(*first, {Rank{1}, 2}, model, initial);
  CHECK(info.initializedModel);
  CHECK(info.policy == "locked");
  CHECK(info.shardCount == 3);
  CHECK(info.device.starts_with(testing::testDevice()));
  CHECK(info.serverVersion == PSD_VERSION);
  CHECK(!joinAs(*second, {Rank{0}, 2}, model, other).initializedModel);
  CHECK(pulled(*second, model) == initial);
}

TEST_CASE("Client and server: a reader reads and is no trainer") {
  const ModelSpec model = modelOf({{100}, {5}});
  testing::LocalServer server(configOf("locked", 2));
  auto reader = connectTo(server);
  auto early = reader->observe({});
  REQUIRE(!early.ok());
  CHECK(early.error().code == ErrorCode::notReady);

  auto trainer = connectTo(server);
  auto values = integers(model, 1);
  joinAs(*trainer, {Rank{0}, 1}, model, values);
  for (const ModelSpec& asked : {model, ModelSpec{}}) {
    PSD_REQUIRE_OK(reader->observe(asked));
    CHECK(pulled(*reader, model) == values);
  }
  CHECK(server.status()["trainers"].size() == 1);
  auto push = reader->push(Step{1}, values, 1, {}).wait();
  REQUIRE(!push.ok());
  CHECK(push.error().code == ErrorCode::invalidArgument);

  auto wrong = reader->observe(modelOf({{100}, {6}}));
  REQUIRE(!wrong.ok());
  CHECK(wrong.error().code == ErrorCode::modelMismatch);
}

TEST_CASE("Client and server: NaN and infinity are refused, counted, and reach no model") {
  const ModelSpec model = modelOf({{5000}, {100}});
  for (const std::string policy : {"hogwild", "locked"}) {
    testing::LocalServer server(configOf(policy, 2));
    auto client = connectTo(server, 4 << 10);
    std::vector<float> expected = integers(model, 2);
    joinAs(*client, {Rank{0}, 1}, model, expected);
    const uint64_t last = ModelLayout(model).places()[1].begin + 99;
    const uint64_t shardBegin = server.status()["shards"][1]["begin"].get<uint64_t>();
    uint64_t step = 0;
    for (float poison : {NAN, -NAN, INFINITY, -INFINITY}) {
      for (uint64_t place : {uint64_t{0}, uint64_t{2501}, last}) {
        INFO(policy << ", " << poison << " at " << place);
        auto gradient = integers(model, step);
        gradient[place] = poison;
        uint64_t before = counter(server, "refused_non_finite");
        auto push = client->push(Step{++step}, gradient, 1, {}).wait();
        REQUIRE(!push.ok());
        CHECK(push.error().code == ErrorCode::nonFinite);
        CHECK(push.message().find(" holds ") != std::string::npos);
        CHECK(push.message().find(" at element ") != std::string::npos);
        CHECK(counter(server, "refused_non_finite") == before + 1);
        auto now = pulled(*client, model);
        CHECK(std::all_of(now.begin(), now.end(), [](float value) { return std::isfinite(value); }));
        CHECK(now[place] == expected[place]);
        // Under locked a shard with a bad slice has no update. What preceded the bad slice (other shards
        // under locked, other slices under hogwild) is already in the model when it is detected.
        auto range = server.status()["shards"][place < shardBegin ? 0 : 1];
        auto begin = range["begin"].get<ptrdiff_t>(), count = range["elements"].get<ptrdiff_t>();
        if (policy == "locked") {
          CHECK(std::equal(now.begin() + begin, now.begin() + begin + count, expected.begin() + begin));
        }
        expected = now;
      }
    }
    auto gradient = integers(model, 9);
    PSD_REQUIRE_OK(client->push(Step{++step}, gradient, 1, {}).wait());
    subtract(expected, gradient);
    CHECK(pulled(*client, model) == expected);
  }
}

TEST_CASE("Client and server: initial values that are not finite are refused") {
  const ModelSpec model = modelOf({{50}});
  testing::LocalServer server(configOf("hogwild", 1));
  auto client = connectTo(server);
  auto initial = integers(model, 1);
  initial[20] = NAN;
  auto refused = client->join({Rank{0}, 1}, model, [&] { return std::span<const float>(initial); });
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::nonFinite);
}

namespace {

/// Reports a whole gradient to a push, in pieces that cut across the slices and in random order.
void reportAll(PartialPush& push, uint64_t elements, testing::Random& random) {
  constexpr uint64_t kPiece = 100;
  std::vector<uint64_t> begins;
  for (uint64_t begin = 0; begin < elements; begin += kPiece) begins.push_back(begin);
  std::shuffle(begins.begin(), begins.end(), random.engine());
  for (uint64_t begin : begins) push.ready(begin, std::min(kPiece, elements - begin));
}

/// `clients` trainers push ones concurrently, `pushes` times each; returns the final model, starting from
/// zero. Returns an empty model on errors, since Catch2 accepts assertions from one thread only.
std::vector<float> pushOnesAtOnce(const testing::LocalServer& server, const ModelSpec& model,
                                  uint32_t clients, uint64_t pushes) {
  const ModelLayout layout(model);
  const std::vector<float> zeros(layout.totalElements(), 0.0f);
  std::vector<float> ones = zeros;
  for (const TensorPlace& place : layout.places()) {
    std::fill_n(ones.begin() + static_cast<ptrdiff_t>(place.begin), place.count, 1.0f);
  }
  std::vector<std::unique_ptr<Client>> trainers;
  for (uint32_t rank = 0; rank < clients; rank++) {
    trainers.push_back(connectTo(server, 16 << 10));
    joinAs(*trainers.back(), {Rank{rank}, clients}, model, zeros);
  }
  std::vector<char> succeeded(clients, false);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < clients; rank++) {
    threads.emplace_back([&, rank] {
      std::vector<float> values(zeros.size());
      for (uint64_t step = 1; step <= pushes; step++) {
        auto pull = trainers[rank]->pull(values).wait();
        if (!pull.ok()) return;
        if (!trainers[rank]->push(Step{step}, ones, 1, pull->versions).wait().ok()) return;
      }
      succeeded[rank] = true;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (char one : succeeded) REQUIRE(one);
  auto end = pulled(*trainers.front(), model);
  for (auto& trainer : trainers) PSD_REQUIRE_OK(trainer->leave());
  return end;
}

}  // namespace

TEST_CASE("Client and server: under locked no push is lost") {
  const ModelSpec model = modelOf({{200, 100}, {33}});
  const uint32_t clients = GENERATE(2u, 4u);
  testing::LocalServer server(configOf("locked", 3), testing::eachDevice().make());
  constexpr uint64_t kPushes = 40;
  auto end = pushOnesAtOnce(server, model, clients, kPushes);
  ModelLayout layout(model);
  for (const TensorPlace& place : layout.places()) {
    for (uint64_t i = place.begin; i < place.begin + place.count; i++) {
      if (end[i] != -static_cast<float>(clients * kPushes)) FAIL("element " << i << " is " << end[i]);
    }
  }
  CHECK(versions(server) == std::vector<uint64_t>(3, clients * kPushes));
  CHECK(counter(server, "updates") == 3 * clients * kPushes);
}

TEST_CASE("Client and server: under hogwild every element ends within the provable bounds") {
  const ModelSpec model = modelOf({{200, 100}, {33}});
  constexpr uint32_t kClients = 4;
  constexpr uint64_t kPushes = 40;
  testing::LocalServer server(configOf("hogwild", 3), testing::eachDevice().make());
  auto end = pushOnesAtOnce(server, model, kClients, kPushes);
  const ModelLayout layout(model);
  for (const TensorPlace& place : layout.places()) {
    for (uint64_t i = place.begin; i < place.begin + place.count; i++) {
      // An update lost to a race is not counted; the last store, at least, is not lost.
      bool within = end[i] <= -1 && end[i] >= -static_cast<float>(kClients * kPushes);
      if (!within || end[i] != std::trunc(end[i])) FAIL("element " << i << " is " << end[i]);
    }
  }
  // Updates are counted even where elements race.
  CHECK(versions(server) == std::vector<uint64_t>(3, kClients * kPushes));
}

TEST_CASE("Client and server: pushes in parts, several under way, make the same model as whole ones") {
  const ModelSpec model = modelOf({{300, 33}, {5}, {4000}});
  const std::vector<float> initial = integers(model, 1);
  const auto device = testing::eachDevice();
  for (const std::string policy : {"hogwild", "locked"}) {
    Json config = configOf(policy, 3);
    config["optimizer"] = {{"type", "sgd"}, {"lr", 0.013}, {"momentum", 0.9}};
    testing::LocalServer wholes(config), parts(config, device.make());
    auto whole = connectTo(wholes, 4 << 10), part = connectTo(parts, 4 << 10);
    joinAs(*whole, {Rank{0}, 1}, model, initial);
    joinAs(*part, {Rank{0}, 1}, model, initial);
    for (uint64_t seed = 1; seed <= 20; seed++) {
      INFO(policy << ", seed " << seed);
      testing::Random random(seed);
      const auto first = integers(model, seed), second = integers(model, seed + 100);
      PSD_REQUIRE_OK(whole->push(Step{2 * seed}, first, 1, {}).wait());
      PSD_REQUIRE_OK(whole->push(Step{2 * seed + 1}, second, 1, {}).wait());
      auto one = part->beginPush(Step{2 * seed}, first, 1, {});
      auto two = part->beginPush(Step{2 * seed + 1}, second, 1, {});
      reportAll(*two, second.size(), random);
      reportAll(*one, first.size(), random);
      auto oneDone = one->finish(), twoDone = two->finish();
      PSD_REQUIRE_OK(oneDone.wait());
      PSD_REQUIRE_OK(twoDone.wait());
      REQUIRE(pulled(*part, model) == pulled(*whole, model));
    }
    CHECK(versions(parts) == std::vector<uint64_t>(3, 40));
  }
}

TEST_CASE(
    "Client and server: the status measures each gradient once, however many shards and slices it has") {
  const ModelSpec model = modelOf({{300, 33}, {5}, {4000}});
  for (const std::string policy : {"hogwild", "locked", "sync"}) {
    INFO(policy);
    const bool rounds = policy == "sync";
    testing::LocalServer server(configOf(policy, 3));
    auto client = connectTo(server, 4 << 10);
    const JoinInfo info = joinAs(*client, {Rank{0}, 1}, model, integers(model, 1));
    for (uint64_t step = 1; step <= 3; step++) {
      const uint64_t basis = rounds ? step - 1 : 0;
      PSD_REQUIRE_OK(client->push(Step{step}, integers(model, step), 1, allAt(info, basis)).wait());
    }
    const Json status = server.status();
    const Json& histograms = status["histograms"];
    CHECK(status["counters"]["gradients"] == 3);
    CHECK(histograms["staleness"]["count"] == 3);
    CHECK(histograms["staleness"]["sum"] == (rounds ? 0 : 0 + 1 + 2));
    CHECK(histograms["staleness"]["most"] == (rounds ? 0 : 2));
    CHECK(status["trainers"][0]["staleness_histogram"] == histograms["staleness"]);
    CHECK(histograms["apply_seconds"]["count"] == 3);
    CHECK(histograms["apply_seconds"]["most"] > 0);
    CHECK(histograms["round_seconds"]["count"] == (rounds ? 3 : 0));
    CHECK(histograms["log_sync_seconds"]["count"] == 0);
    PSD_REQUIRE_OK(client->leave());
    if (rounds) continue;
    // Each trainer has its own staleness: another trainer's gradient, from version 0 on, is 3 behind.
    auto other = connectTo(server, 4 << 10);
    joinAs(*other, {Rank{0}, 1}, model, integers(model, 1));
    PSD_REQUIRE_OK(other->push(Step{1}, integers(model, 4), 1, allAt(info, 0)).wait());
    const Json later = server.status();
    CHECK(later["histograms"]["staleness"]["count"] == 4);
    const Json& own = later["trainers"][0]["staleness_histogram"];
    CHECK(own["count"] == 1);
    CHECK(own["most"] == 3);
    PSD_REQUIRE_OK(other->leave());
  }
}

TEST_CASE("Client and server: a push that is given up leaves no update and blocks nothing") {
  const ModelSpec model = modelOf({{9000}});
  testing::LocalServer server(configOf("locked", 1));
  auto client = connectTo(server, 4 << 10);
  std::vector<float> expected = integers(model, 2);
  joinAs(*client, {Rank{0}, 1}, model, expected);
  {
    std::vector<float> gradient = integers(model, 3);
    auto dropped = client->beginPush(Step{1}, gradient, 1, {});
    dropped->ready(0, 5000);
    auto unfinished = client->beginPush(Step{2}, gradient, 1, {});
    unfinished->ready(5000, 1000);
    auto refused = unfinished->finish().wait();
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == ErrorCode::invalidArgument);
  }
  const auto gradient = integers(model, 4);
  PSD_REQUIRE_OK(client->push(Step{3}, gradient, 1, {}).wait());
  subtract(expected, gradient);
  CHECK(pulled(*client, model) == expected);
  CHECK(versions(server) == std::vector<uint64_t>{1});
}

TEST_CASE("Client and server: trainers that disagree get the difference, and may retry") {
  const ModelSpec model = modelOf({{20, 3}, {5}});
  testing::LocalServer server(configOf("hogwild", 2));
  auto holder = connectTo(server), other = connectTo(server);
  auto values = integers(model, 0);
  joinAs(*holder, {Rank{0}, 2}, model, values);

  auto refuse = [&](Membership membership, const ModelSpec& theirs, ErrorCode code,
                    const std::string& words) {
    auto joined = other->join(membership, theirs, [&] { return std::span<const float>(values); });
    REQUIRE(!joined.ok());
    CHECK(joined.error().code == code);
    INFO(joined.message());
    CHECK(joined.message().find(words) != std::string::npos);
  };
  refuse({Rank{0}, 2}, model, ErrorCode::rankTaken, "rank 0 is taken by process");
  refuse({Rank{1}, 3}, model, ErrorCode::worldSizeMismatch, "world size of 3");
  refuse({Rank{2}, 2}, model, ErrorCode::invalidArgument, "rank 2 is not below the world size 2");
  refuse({Rank{1}, 2}, modelOf({{20, 4}, {5}}), ErrorCode::modelMismatch, "t0 f32[20,4]");
  refuse({Rank{1}, 2}, modelOf({{20, 3}}), ErrorCode::modelMismatch, "t1 f32[5]");
  refuse({Rank{1}, 2}, modelOf({{20, 3}, {5}, {1}}), ErrorCode::modelMismatch, "t2 f32[1]");
  CHECK(counter(server, "joins_refused") == 6);
  CHECK(!joinAs(*other, {Rank{1}, 2}, model, values).initializedModel);
  CHECK(pulled(*other, model) == values);
}

}  // namespace psd::client_server_test
