// Error feedback for a push whose outcome differs from shard to shard: what was dropped is added to the next
// pushes, and what was applied is not added twice. All values are whole numbers, so the model is exact.

#include <algorithm>
#include <vector>

#include "common/types/model_layout.h"
#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "trainer/client/api/client.h"

namespace psd::feedback_test {
namespace {

using testing::LocalServer;
using testing::RawTrainer;
using Json = nlohmann::ordered_json;

constexpr uint64_t kOfGroup = 6000;
const char* const kHalf = "topk:fraction=0.5";  // two pushes leave no residual

/// One tensor in each of two groups; those named "free…" use hogwild.
ModelSpec twoTensors(bool freeFirst) {
  const TensorSpec free{"free", DType::f32, {kOfGroup}}, rounds{"rounds", DType::f32, {kOfGroup}};
  if (freeFirst) return {"two", {free, rounds}};
  return {"two", {rounds, free}};
}

Json configOf(const Json& policy) {
  return {{"policy", policy},
          {"shards", 4},
          {"threads", 2},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
          {"groups", {{{"match", "free*"}, {"policy", {{"type", "hogwild"}}}}}}};
}

struct Trainer {
  std::unique_ptr<Client> client;
  std::vector<float> values;

  std::vector<Version> pull() {
    auto pulled = client->pull(values).wait();
    PSD_REQUIRE_OK(pulled);
    return pulled->versions;
  }
  Result<PushInfo> push(uint64_t step, const std::vector<float>& gradient,
                        const std::vector<Version>& basis = {}) {
    return client->push(Step{step}, gradient, 1, basis).wait();
  }
  /// Pushes zeros until the residual must be sent, and returns the model.
  std::vector<float> flushResiduals(uint64_t step) {
    const std::vector<float> nothing(values.size());
    for (const uint64_t end = step + 3; step < end; step++) {
      auto pushed = push(step, nothing, pull());
      PSD_REQUIRE_OK(pushed);
      REQUIRE(pushed->outcome == PushOutcome::applied);
    }
    pull();
    return values;
  }
};

Trainer joined(const LocalServer& server, const ModelSpec& model, uint32_t rank, uint32_t worldSize,
               const std::string& codec, uint32_t connections) {
  ClientOptions options;
  options.servers = {server.address()};
  options.chunkBytes = 4096;
  options.connections = connections;
  options.codec = codec;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  Trainer trainer{std::move(*client), std::vector<float>(ModelLayout(model).totalElements())};
  PSD_REQUIRE_OK(trainer.client->join({Rank{rank}, worldSize}, model,
                                      [&] { return std::span<const float>(trainer.values); }));
  return trainer;
}

/// −1, −2, … in an order in which every slice has large and small ones; less `more` in each place.
std::vector<float> downTo(const ModelSpec& model, float more = 0) {
  const ModelLayout layout(model);
  std::vector<float> values(layout.totalElements());
  for (const TensorPlace& place : layout.places()) {
    for (uint64_t i = 0; i < place.count; i++) {
      values[place.begin + i] = -static_cast<float>(1 + i * 7919 % place.count) - more;
    }
  }
  return values;
}

std::vector<float> negated(std::vector<float> values) {
  for (float& value : values) value = 0 - value;
  return values;
}

TEST_CASE(
    "Feedback: where one group drops a push and another applies it, the former's part alone comes again") {
  for (const bool freeFirst : {false, true}) {
    for (const uint32_t connections : {1u, 3u}) {
      INFO((freeFirst ? "hogwild" : "sync") << " first, " << connections << " connections");
      const ModelSpec model = twoTensors(freeFirst);
      const LocalServer server(configOf({{"type", "sync"}, {"backup_trainers", 1}}));
      Trainer quick = joined(server, model, 0, 2, "none", 1);
      Trainer slow = joined(server, model, 1, 2, kHalf, connections);
      const std::vector<float> ones(downTo(model).size(), -1.f), gradient = downTo(model);
      PSD_REQUIRE_OK(quick.push(1, ones));  // closes the round
      const auto late = slow.push(1, gradient);
      PSD_REQUIRE_OK(late);
      REQUIRE(late->outcome == PushOutcome::late);
      const TensorPlace rounds = ModelLayout(model).places()[freeFirst ? 1 : 0];
      slow.pull();
      for (uint64_t i = 0; i < kOfGroup; i++) REQUIRE(slow.values[rounds.begin + i] == 1.f);

      const std::vector<float> held = slow.flushResiduals(2);
      CHECK(held == negated(downTo(model, 1)));
    }
  }
}

TEST_CASE(
    "Feedback: where one group refuses a push and another applies it, the former's part alone comes again") {
  for (const bool freeFirst : {false, true}) {
    for (const uint32_t connections : {1u, 3u}) {
      INFO((freeFirst ? "hogwild" : "sync") << " first, " << connections << " connections");
      const ModelSpec model = twoTensors(freeFirst);
      LocalServer server(
          configOf({{"type", "sync"}, {"quorum", 2}, {"round_timeout_ms", 20}, {"on_timeout", "fail"}}));
      const Trainer absent = joined(server, model, 0, 2, "none", 1);
      Trainer alone = joined(server, model, 1, 2, kHalf, connections);
      const auto refused = alone.push(1, downTo(model));
      REQUIRE_FALSE(refused.ok());
      REQUIRE(refused.error().code == ErrorCode::deadlineExceeded);
      PSD_REQUIRE_OK(server.reload(configOf({{"type", "hogwild"}})));
      CHECK(alone.flushResiduals(2) == negated(downTo(model)));
    }
  }
}

TEST_CASE(
    "Feedback: where some shards of a group that clips by the norm drop a push, theirs alone come again") {
  for (const uint32_t connections : {1u, 3u}) {
    INFO(connections << " connections");
    const ModelSpec model{"one", {{"w", DType::f32, {2 * kOfGroup}}}};
    const LocalServer server(
        {{"policy", {{"type", "locked"}, {"clip", {{"norm", 1e9}}}, {"staleness", {{"max", 0}}}}},
         {"shards", 4},
         {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}}});
    Trainer trainer = joined(server, model, 0, 1, kHalf, connections);
    const std::vector<float> gradient = downTo(model);
    PSD_REQUIRE_OK(trainer.push(1, gradient));
    for (const uint32_t old : {1u, 3u}) {
      std::vector<Version> basis = trainer.pull();
      basis[old] = Version{0};
      const auto stale = trainer.push(old + 1, gradient, basis);
      PSD_REQUIRE_OK(stale);
      REQUIRE(stale->outcome == PushOutcome::stale);
    }
    std::vector<float> expected = negated(gradient);
    for (float& value : expected) value *= 3;
    CHECK(trainer.flushResiduals(5) == expected);
  }
}

TEST_CASE("Feedback: a repeated slice gets the outcome of its own shard") {
  const uint64_t half = testing::kElements / 2;
  const ModelSpec model{"two", {{"rounds", DType::f32, {half}}, {"free", DType::f32, {half}}}};
  Json config = configOf({{"type", "sync"}});
  config["shards"] = 2;
  const LocalServer server(config);
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1, {.model = model});
  trainer.initializeZeros();
  const std::vector<float> first(1008, -1.f), second(992, -1.f);
  const auto answer = [&](uint64_t step, uint32_t shard, uint64_t offset) {
    return trainer.answerTo({.step = step, .shard = shard, .offset = offset},
                            testing::dataOf(offset == 0 ? first : second));
  };
  const auto outcome = [](const auto& answer) { return answer.getAccepted().getOutcome(); };
  for (const uint64_t step : {1u, 2u}) {  // the second one is late for its round
    for (const uint32_t shard : {0u, 1u}) {
      CHECK(outcome(answer(step, shard, 0)) == schema::PushOutcome::RECEIVED);
      if (shard == 0) CHECK(outcome(answer(step, shard, 1008)) == schema::PushOutcome::RECEIVED);
    }
    const auto last = answer(step, 1, 1008);
    CHECK(outcome(last) == (step == 1 ? schema::PushOutcome::APPLIED : schema::PushOutcome::LATE));
    REQUIRE(last.getDropped().size() == step - 1);
    if (step == 2) CHECK(last.getDropped()[0] == 0);
  }
  for (const uint64_t offset : {0u, 1008u}) {
    const auto rounds = answer(2, 0, offset), free = answer(2, 1, offset);
    CHECK(outcome(rounds) == schema::PushOutcome::LATE);
    CHECK(outcome(free) == schema::PushOutcome::APPLIED);
    CHECK(rounds.getDropped().size() + free.getDropped().size() == 0);
    CHECK(outcome(answer(1, 0, offset)) == schema::PushOutcome::APPLIED);
  }
  const Json status = server.status();
  CHECK(status["shards"][0]["version"] == 1);
  CHECK(status["shards"][1]["version"] == 2);
}

}  // namespace
}  // namespace psd::feedback_test
