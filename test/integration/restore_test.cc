// A trainer that brings values and optimizer state to a daemon whose run has not begun.

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "test/integration/protocol_server.h"
#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"

namespace psd::restore_test {
namespace {

using testing::LocalServer;
using testing::RawTrainer;
using testing::turnUntil;
using Json = nlohmann::ordered_json;

constexpr uint32_t kShards = 2;

Json configOf(const Json& policy = {{"type", "locked"}}) {
  return {{"shards", kShards}, {"policy", policy}, {"optimizer", {{"type", "adam"}, {"lr", 0.5}}}};
}

Status sendSlice(RawTrainer& trainer, uint32_t shard, const char* state, uint64_t offset,
                 const std::vector<float>& values) {
  auto request = trainer.session().restoreStateRequest();
  request.setShard(shard);
  request.setState(state);
  request.setOffset(offset);
  request.setValues(testing::dataOf(values));
  return wire::readStatus(trainer.peer().wait(request.send().dropPipeline()).getStatus());
}

/// Sends a plane of every shard, each of its elements `value`.
Status sendAll(RawTrainer& trainer, const char* state, float value) {
  for (uint32_t shard = 0; shard < kShards; shard++) {
    for (const auto& [offset, count] : testing::kSlicesOfShard) {
      PSD_RETURN_IF_ERROR(sendSlice(trainer, shard, state, offset, std::vector<float>(count, value)));
    }
  }
  return {};
}

Status apply(RawTrainer& trainer, const std::vector<uint64_t>& steps) {
  auto request = trainer.session().restoredRequest();
  auto out = request.initSteps(static_cast<kj::uint>(steps.size()));
  for (kj::uint i = 0; i < out.size(); i++) out.set(i, steps[i]);
  return wire::readStatus(trainer.peer().wait(request.send().dropPipeline()).getStatus());
}

Status restore(RawTrainer& trainer, float value, const std::vector<uint64_t>& steps) {
  PSD_RETURN_IF_ERROR(sendAll(trainer, "", value));
  PSD_RETURN_IF_ERROR(sendAll(trainer, "exp_avg", 2 * value));
  PSD_RETURN_IF_ERROR(sendAll(trainer, "exp_avg_sq", 3 * value));
  return apply(trainer, steps);
}

struct Pulled {
  uint64_t version = 0, steps = 0;
  std::vector<float> values;
};

Pulled pullState(RawTrainer& trainer, uint32_t shard, const char* state, uint64_t pull = 1) {
  Pulled pulled;
  for (const auto& [offset, count] : testing::kSlicesOfShard) {
    auto request = trainer.session().pullStateRequest();
    request.setPull(pull);
    request.setShard(shard);
    request.setState(state);
    request.setOffset(offset);
    request.setCount(count);
    auto answer = trainer.peer().wait(request.send().dropPipeline());
    REQUIRE(answer.isSlice());
    const auto slice = answer.getSlice();
    CHECK(slice.getStates().size() == 2);
    const auto values = wire::floatsIn(slice.getValues());
    PSD_REQUIRE_OK(values);
    pulled.version = slice.getVersion();
    pulled.steps = slice.getSteps();
    pulled.values.insert(pulled.values.end(), values->begin(), values->end());
  }
  return pulled;
}

void pushAll(RawTrainer& trainer, uint64_t step, uint64_t basis, std::vector<schema::PushOutcome>& outcomes) {
  for (uint32_t shard = 0; shard < kShards; shard++) {
    for (const auto& [offset, count] : testing::kSlicesOfShard) {
      auto answer = trainer.answerTo({.step = step, .shard = shard, .offset = offset, .basis = basis},
                                     testing::dataOf(std::vector<float>(count, 1.f)));
      REQUIRE(answer.isAccepted());
      outcomes.push_back(answer.getAccepted().getOutcome());
    }
  }
}

TEST_CASE("Restore: values, state and steps of all shards are replaced at once") {
  LocalServer server(configOf());
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 2), other(io, server, 1, 2);
  trainer.initializeZeros();
  PSD_REQUIRE_OK(other.awaitModel());
  PSD_REQUIRE_OK(sendAll(trainer, "", 1));
  CHECK(trainer.values(0).front() == 0);
  PSD_REQUIRE_OK(restore(trainer, 1, {5, 7}));
  for (uint32_t shard = 0; shard < kShards; shard++) {
    const uint64_t steps = shard == 0 ? 5 : 7;
    for (const auto& [state, value] :
         std::map<std::string, float>{{"", 1}, {"exp_avg", 2}, {"exp_avg_sq", 3}}) {
      const Pulled pulled = pullState(trainer, shard, state.c_str());
      CHECK(pulled.version == steps);
      CHECK(pulled.steps == steps);
      CHECK(pulled.values == std::vector<float>(pulled.values.size(), value));
    }
  }
  SECTION("a gradient computed before is dropped, a later one is applied") {
    std::vector<schema::PushOutcome> outcomes;
    pushAll(other, 1, 0, outcomes);
    CHECK(outcomes.back() == schema::PushOutcome::STALE);
    CHECK(pullState(trainer, 0, "", 2).version == 5);
    outcomes.clear();
    pushAll(other, 2, 7, outcomes);
    CHECK(outcomes.back() == schema::PushOutcome::APPLIED);
    const Pulled pulled = pullState(trainer, 0, "exp_avg", 3);
    CHECK(pulled.steps == 6);
    CHECK(pulled.values.front() == Approx(0.9 * 2 + 0.1));
    SECTION("and then nothing is restored") {
      const Status late = restore(trainer, 1, {5, 7});
      REQUIRE_FALSE(late.ok());
      CHECK(late.error().code == ErrorCode::invalidArgument);
      CHECK(late.message().find("run has begun") != std::string::npos);
    }
  }
  SECTION("another state, of fewer steps, gets higher versions") {
    PSD_REQUIRE_OK(restore(other, 4, {0, 0}));
    const Pulled pulled = pullState(trainer, 1, "exp_avg", 2);
    CHECK(pulled.version == 8);
    CHECK(pulled.steps == 0);
    CHECK(pulled.values.front() == 8);
  }
}

TEST_CASE(
    "Restore: a pull of the state that was not continued is dropped, and the next one begins with a request "
    "for no values") {
  Json settings = configOf();
  settings["limits"] = {{"pull_timeout_ms", 50}};
  LocalServer server(settings);
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 1);
  trainer.initializeZeros();
  const auto pull = [&](uint64_t offset, uint64_t count) {
    auto request = trainer.session().pullStateRequest();
    request.setPull(1);
    request.setOffset(offset);
    request.setCount(count);
    auto answer = trainer.peer().wait(request.send().dropPipeline());
    return answer.isError() ? testing::statusFrom(answer.getError()) : Status();
  };
  PSD_REQUIRE_OK(pull(0, 16));
  turnUntil(io, [&] { return server.status()["snapshot_bytes"] == 0; });
  const Status late = pull(16, 16);
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().code == ErrorCode::deadlineExceeded);
  PSD_REQUIRE_OK(pull(0, 0));
  CHECK(pull(0, 16).ok());
}

TEST_CASE("Restore: what a trainer sends is checked") {
  LocalServer server(configOf());
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 2), other(io, server, 1, 2);
  trainer.initializeZeros();
  PSD_REQUIRE_OK(other.awaitModel());
  const uint64_t first = testing::kSlicesOfShard[0].second;
  const std::vector<float> slice(first, 1.f);
  const auto refused = [&](const Status& status, ErrorCode code, const std::string& words) {
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == code);
    CHECK(status.message().find(words) != std::string::npos);
    CAPTURE(status.message());
    CHECK(server.status()["shards"][0]["version"] == 0);
  };
  const auto with = [&](size_t at, float value) {
    std::vector<float> changed = slice;
    changed[at] = value;
    return changed;
  };
  const auto begun = [&] { PSD_REQUIRE_OK(sendSlice(trainer, 0, "", 0, slice)); };
  refused(sendSlice(trainer, 1, "", 0, slice), ErrorCode::badSlice, "begins with the values of shard 0");
  refused(apply(trainer, {1, 1}), ErrorCode::badSlice, "no state to restore");
  begun();
  refused(sendSlice(trainer, 0, "momentum", 0, slice), ErrorCode::badSlice,
          "shard 0, adam, has no state 'momentum'; it has exp_avg, exp_avg_sq");
  begun();
  refused(sendSlice(trainer, 9, "", 0, slice), ErrorCode::badSlice, "there are 2 shards");
  refused(sendSlice(trainer, 0, "", 0, with(3, std::numeric_limits<float>::quiet_NaN())),
          ErrorCode::nonFinite, "nan");
  begun();
  refused(sendSlice(trainer, 0, "exp_avg", 0, with(3, std::numeric_limits<float>::infinity())),
          ErrorCode::nonFinite, "state exp_avg: ");
  begun();
  refused(sendSlice(trainer, 0, "exp_avg_sq", 0, with(3, -1)), ErrorCode::badSlice, "takes its square root");
  begun();
  PSD_REQUIRE_OK(sendSlice(trainer, 0, "exp_avg", 0, with(3, -1)));
  refused(sendSlice(trainer, 0, "exp_avg", 0, slice), ErrorCode::badSlice,
          "state exp_avg of element 0 of shard 0");
  begun();
  refused(sendSlice(other, 0, "", 0, slice), ErrorCode::notReady, "another trainer is restoring");
  refused(apply(trainer, {1, 1}), ErrorCode::badSlice, "shard 0 has values for ");
  refused(restore(trainer, 1, {1}), ErrorCode::badSlice, "steps of 1 shards, and the model has 2");
  refused(restore(trainer, 1, {1, UINT64_MAX}), ErrorCode::badSlice,
          "shard 1 has 18446744073709551615 steps");
  PSD_REQUIRE_OK(restore(other, 1, {3, 3}));
  CHECK(server.status()["shards"][0]["version"] == 3);
}

TEST_CASE("Restore: a gradient that waits for others prevents it") {
  LocalServer server(configOf({{"type", "sync"}}));
  auto io = kj::setupAsyncIo();
  RawTrainer trainer(io, server, 0, 2), other(io, server, 1, 2);
  trainer.initializeZeros();
  PSD_REQUIRE_OK(other.awaitModel());
  for (uint32_t shard = 0; shard < kShards; shard++) {
    for (const auto& [offset, count] : testing::kSlicesOfShard) {
      const bool last = shard + 1 == kShards && offset != 0;
      if (last) break;
      PSD_REQUIRE_OK(other.push({.shard = shard, .offset = offset}, std::vector<float>(count, 1.f)));
    }
  }
  const std::vector<float> rest(testing::kSlicesOfShard[1].second, 1.f);
  const auto waiting =
      other.startPush({.shard = 1, .offset = testing::kSlicesOfShard[1].first}, testing::dataOf(rest));
  other.peer().wait(other.peer().reading().pingRequest().send().ignoreResult());
  server.statusWhen([](const Json& now) { return now["waiting"].size() == 1; });
  const Status early = restore(trainer, 1, {3, 3});
  REQUIRE_FALSE(early.ok());
  CHECK(early.message().find("another trainer has pushed") != std::string::npos);
}

TEST_CASE("Restore: the daemon holds at most limits.arriving_bytes for it") {
  Json config = configOf();
  config["limits"] = {{"arriving_bytes", 65536}};
  LocalServer server(config);
  auto io = kj::setupAsyncIo();
  testing::RawLife life;
  life.model = {"large", {{"w", DType::f32, {6400}}}};
  RawTrainer trainer(io, server, 0, 1, life);
  for (uint32_t shard = 0; shard < kShards; shard++) {
    PSD_REQUIRE_OK(trainer.initialize(shard, 0, std::vector<float>(3200)));
  }
  PSD_REQUIRE_OK(trainer.initialized());
  const Status large = sendSlice(trainer, 0, "", 0, std::vector<float>(1024));
  REQUIRE_FALSE(large.ok());
  CHECK(large.error().code == ErrorCode::overloaded);
}

}  // namespace
}  // namespace psd::restore_test
