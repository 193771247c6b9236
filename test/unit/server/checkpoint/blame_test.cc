#include "server/checkpoint/blame.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "server/checkpoint/replay.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::blame_test {
namespace {

using namespace testing;
using nlohmann::json;

/// An update of a shard by a push of `rank`, which adds `by` to every element. Waits until it is durable.
void move(Life& daemon, TestLoop& loop, size_t index, uint32_t rank, float by) {
  Shard& shard = daemon.store->shard(index);
  Lanes lanes = daemon.store->makeLanes();
  const std::vector<float> gradient(shard.range().count, -by);
  const UpdateScalars scalars = shard.scalars(shard.beginUpdate());
  PSD_REQUIRE_OK(
      waitFor<Status>([&](auto done) { shard.storage().apply(*lanes[0], 0, gradient, scalars, done); }));
  const UpdateSource source{Rank{rank}, 32, rank + 11, Step{scalars.number + 100}, {}, 7};
  shard.endUpdate({scalars, gradient, {&source, 1}, UpdatePart::whole});
  loop.wait(shard.whenDurable(shard.logged()));
}

json blameOf(Env& env, ReplayChoice choice = {}) {
  std::optional<Blame> blame;
  const auto model =
      rebuildCounterfactual(env, "/data", {}, std::move(choice),
                            [&](const ParameterStore& store) { return &blame.emplace(store); });
  PSD_REQUIRE_OK(model);
  return json::parse(blame->json());
}

std::vector<uint64_t> updatesOf(const json& tensor) {
  std::vector<uint64_t> updates;
  for (const json& move : tensor["largest"]) updates.push_back(move["update"]);
  return updates;
}

TEST_CASE("blame: a distance is the norm of what an update changed in the tensor") {
  MemoryEnv env;
  TestLoop loop;
  Life daemon(env, 1);  // of tensors with 35, 1 and 40 elements
  REQUIRE(daemon.begin());
  move(daemon, loop, 0, 0, 1);
  move(daemon, loop, 0, 1, -2);
  move(daemon, loop, 0, 0, 1);
  const json blame = blameOf(env);
  CHECK(blame["model"] == "small");
  CHECK(blame["updates"] == 3);
  const std::vector<double> elements = {35, 1, 40};
  REQUIRE(blame["tensors"].size() == elements.size());
  for (size_t i = 0; i < elements.size(); i++) {
    const json& tensor = blame["tensors"][i];
    const double one = std::sqrt(elements[i]);
    CHECK(tensor["name"] == kSmallModel.tensors[i].name);
    REQUIRE(updatesOf(tensor) == std::vector<uint64_t>{2, 1, 3});
    CHECK(tensor["largest"][0]["distance"].get<double>() == Approx(2 * one));
    CHECK(tensor["largest"][1]["distance"].get<double>() == Approx(one));
    CHECK(tensor["largest"][0]["version"] == 2);
    CHECK(tensor["largest"][0]["shard"] == 0);
    CHECK(tensor["largest"][0]["sources"] == json::parse(R"([{"rank": 1, "step": 102, "staleness": 7}])"));
    REQUIRE(tensor["by_rank"].size() == 2);
    CHECK(tensor["by_rank"][0]["ranks"] == json::parse("[0]"));
    CHECK(tensor["by_rank"][0]["updates"] == 2);
    CHECK(tensor["by_rank"][0]["distance"].get<double>() == Approx(2 * one));
    CHECK(tensor["by_rank"][1]["distance"].get<double>() == Approx(2 * one));
  }
  // Without the other one: update 3 of the log makes version 2 here.
  const json without = blameOf(env, ReplayChoice(ReplayChoice::What::without, {Rank{1}}));
  CHECK(without["updates"] == 2);
  CHECK(updatesOf(without["tensors"][0]) == std::vector<uint64_t>{1, 3});
  CHECK(without["tensors"][0]["largest"][1]["version"] == 2);
}

TEST_CASE("blame: each part of a tensor in several shards is measured separately") {
  MemoryEnv env;
  TestLoop loop;
  Life daemon(env, 3);
  REQUIRE(daemon.begin());
  for (size_t shard = 0; shard < 3; shard++) move(daemon, loop, shard, 0, 1);
  const json blame = blameOf(env);
  const std::vector<double> elements = {35, 1, 40};
  size_t divided = 0;
  for (size_t i = 0; i < elements.size(); i++) {
    double squares = 0;
    for (const json& move : blame["tensors"][i]["largest"]) {
      squares += std::pow(move["distance"].get<double>(), 2);
    }
    CHECK(squares == Approx(elements[i]));
    divided += blame["tensors"][i]["largest"].size() > 1;
  }
  CHECK(divided > 0);
}

TEST_CASE("blame: the ten largest are kept, in order, and NaN comes before infinity") {
  MemoryEnv env;
  TestLoop loop;
  Life daemon(env, 1);
  REQUIRE(daemon.begin());
  for (const int by : {5, 1, 9, 3, 12, 7, 2, 11, 4, 10, 6, 8}) {
    move(daemon, loop, 0, 0, static_cast<float>(by));
  }
  CHECK(updatesOf(blameOf(env)["tensors"][1]) == std::vector<uint64_t>{5, 8, 10, 3, 12, 6, 11, 1, 9, 4});
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  move(daemon, loop, 0, 0, kInfinity);   // 13: to infinity
  move(daemon, loop, 0, 0, -kInfinity);  // 14: to NaN
  const json blame = blameOf(env);
  CHECK(updatesOf(blame["tensors"][0]) == std::vector<uint64_t>{14, 13, 5, 8, 10, 3, 12, 6, 11, 1});
  CHECK(blame["tensors"][0]["largest"][0]["distance"].is_null());
  CHECK(blame["tensors"][0]["largest"][1]["distance"].is_null());
}

}  // namespace
}  // namespace psd::blame_test
