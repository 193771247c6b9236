// A daemon that changes to another configuration while trainers work.

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "test/integration/reload_trainers.h"
#include "test/support/async_backend.h"
#include "test/support/device_backend.h"

namespace psd::reload_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::configOf;
using testing::gradientOf;
using testing::joined;
using testing::kModel;
using testing::valueOf;

std::vector<float> minusOnes() { return gradientOf(-1); }

/// Outcomes of a trainer's pushes.
struct Tally {
  std::vector<Version> applied;  ///< of the last shard, as acknowledged
  uint64_t dropped = 0;
  Status status;
};

/// Pulls and pushes until it is stopped.
void train(Client& client, const std::vector<float>& gradient, const std::atomic<bool>& stop,
           std::atomic<uint64_t>& steps, Tally& tally) {
  std::vector<float> values(gradient.size());
  for (uint64_t step = 1; !stop; step++) {
    auto pulled = client.pull(values).wait();
    if (tally.status = pulled.status(); !tally.status.ok()) return;
    auto pushed = client.push(Step{step}, gradient, 1, pulled->versions).wait();
    if (tally.status = pushed.status(); !tally.status.ok()) return;
    if (pushed->outcome == PushOutcome::applied) {
      tally.applied.push_back(pushed->versions.back());
    } else {
      tally.dropped++;
    }
    steps++;
  }
  tally.status = client.leave();
}

/// The expected value in multiples of `unit`, given the acknowledged versions; each trainer pushes its rank
/// plus 1. Pushes acknowledged with the same version are one update, their mean.
float acknowledged(const std::vector<Tally>& tallies, float unit) {
  struct Update {
    uint64_t sum = 0, count = 0;
  };
  std::map<Version, Update> updates;
  for (size_t rank = 0; rank < tallies.size(); rank++) {
    for (Version version : tallies[rank].applied) {
      updates[version].sum += rank + 1;
      updates[version].count++;
    }
  }
  double total = 0;
  for (const auto& [version, update] : updates) {
    total += unit * static_cast<double>(update.sum) / static_cast<double>(update.count);
  }
  return static_cast<float>(total);
}

DEVICE_TEST("Reload: policies change under four trainers, and no push and no trainer is lost") {
  constexpr size_t kTrainers = 4;
  constexpr float kUnit = 12;  // a round of any of the trainers has a whole mean
  // Under hogwild updates on several loops race, so nothing can be counted.
  struct Free {
    const char* policy;
    int threads;
  };
  const Free free = GENERATE(Free{"hogwild", 2}, Free{"hogwild", 1}, Free{"locked", 2});
  INFO(free.policy << " on " << free.threads << " threads");
  const bool exact = free.policy != std::string("hogwild") || free.threads == 1;
  const auto configOf = [&](const Json& policy) {
    Json config = testing::configOf(policy);
    config["threads"] = free.threads;
    return config;
  };
  const Json none = {{"type", free.policy}}, sync = {{"type", "sync"}},
             bounded = {{"type", "bounded_staleness"}, {"bound", 2}};
  testing::LocalServer server(configOf(none), device.make());
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t rank = 0; rank < kTrainers; rank++) {
    // Half of them read in the daemon's memory, which only hogwild allows.
    clients.push_back(rank % 2 == 0 ? joined(server.address(), rank, kTrainers)
                                    : joined(server.unixAddress(), rank, kTrainers, Transport::automatic));
  }
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> steps = 0;
  std::vector<Tally> tallies(kTrainers);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kTrainers; i++) {
    threads.emplace_back([&, i] {
      train(*clients[i], gradientOf(-kUnit * static_cast<float>(i + 1)), stop, steps, tallies[i]);
    });
  }
  // Counts steps only: the trainers take some under every policy.
  const auto workOn = [&] {
    for (const uint64_t until = steps + 40; steps < until;) std::this_thread::yield();
  };
  std::vector<Result<std::string>> changes;
  for (const Json& policy : {sync, bounded, none, sync, none}) {
    workOn();
    changes.push_back(server.reload(configOf(policy)));
  }
  workOn();
  stop = true;
  for (std::thread& thread : threads) thread.join();

  for (const auto& change : changes) PSD_REQUIRE_OK(change);
  CHECK(*changes[0] == "policy.type: \"" + std::string(free.policy) +
                           R"(" -> "sync", policy.aggregator: none -> {"type":"mean"}, )"
                           R"(policy.backup_trainers: none -> 0, policy.start_trainers: none -> 0, )"
                           R"(policy.quorum: none -> 1, policy.round_timeout_ms: none -> 0, )"
                           R"(policy.on_timeout: none -> "proceed")");
  uint64_t dropped = 0;
  for (const Tally& tally : tallies) {
    PSD_REQUIRE_OK(tally.status);
    CHECK_FALSE(tally.applied.empty());
    dropped += tally.dropped;
  }
  CHECK(dropped == 0);
  const Json status = server.status();
  CHECK(status["policy"] == free.policy);
  CHECK(status["counters"]["reloads"] == 5);
  CHECK(status["counters"]["late_pushes"] == 0);
  CHECK(status["trainers_lost"] == 0);
  for (const Json& shard : status["shards"]) CHECK(shard["version"] == status["shards"][0]["version"]);
  if (exact) {
    ClientOptions options;
    options.servers = {server.address()};
    auto reader = Client::connect(options);
    PSD_REQUIRE_OK(reader);
    PSD_REQUIRE_OK((*reader)->observe(kModel));
    const float expected = acknowledged(tallies, kUnit);
    REQUIRE(expected < 0x1p24f);  // all sums are exact
    CHECK(valueOf(**reader, 0) == expected);
    CHECK(valueOf(**reader, 1) == expected);
  }
}

DEVICE_TEST("Reload: a round that is open closes with what it has, and that and no more is in the model") {
  const Json hogwild = {{"type", "hogwild"}};
  Json sync = {{"type", "sync"}};
  const bool enough = GENERATE(true, false);
  if (!enough) sync["quorum"] = 3;
  testing::LocalServer server(configOf(sync), device.make());
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t rank = 0; rank < 4; rank++) clients.push_back(joined(server.address(), rank, 4));
  const auto one = gradientOf(-2), other = gradientOf(-6);
  auto first = clients[0]->push(Step{1}, one, 1, {}), third = clients[2]->push(Step{1}, other, 3, {});
  server.statusWhen([](const Json& status) {
    return !status["waiting"].empty() && status["waiting"][0]["ranks"].size() == 2;
  });
  PSD_REQUIRE_OK(server.reload(configOf(hogwild)));
  for (auto* waiting : {&first, &third}) {
    const auto answer = waiting->wait();
    PSD_REQUIRE_OK(answer);
    CHECK(answer->outcome == (enough ? PushOutcome::applied : PushOutcome::late));
  }
  const float after = enough ? 5 : 0;  // (2 · 1 + 6 · 3) / 4
  CHECK(valueOf(*clients[1]) == after);
  const Json status = server.status();
  CHECK(status["waiting"].empty());
  CHECK(status["staged_bytes"] == 0);
  CHECK(status["counters"]["late_pushes"] == (enough ? 0 : 2));
  for (const Json& shard : status["shards"]) CHECK(shard["version"] == (enough ? 1 : 0));
  // All continue, each alone.
  const auto minusOne = minusOnes();
  for (size_t rank = 0; rank < 4; rank++) {
    const auto answer = clients[rank]->push(Step{2}, minusOne, 1, {}).wait();
    PSD_REQUIRE_OK(answer);
    CHECK(answer->outcome == PushOutcome::applied);
  }
  CHECK(valueOf(*clients[1]) == after + 4);
}

TEST_CASE("Reload: the daemon's memory is shown only while the policy lets trainers read it") {
  testing::needsCpu();
  const auto config = [](const char* policy) { return configOf({{"type", policy}}); };
  testing::LocalServer server(config("hogwild"));
  auto client = joined(server.unixAddress(), 0, 1, Transport::shm);
  const size_t elements = ModelLayout(kModel).totalElements();
  CHECK(client->view().size() == elements);
  PSD_REQUIRE_OK(server.reload(config("locked")));
  CHECK(client->view().empty());
  PSD_REQUIRE_OK(server.reload(config("hogwild")));
  CHECK(client->view().size() == elements);
}

TEST_CASE("Reload: the learning rate changes for the pushes that come after") {
  testing::LocalServer server(configOf({{"type", "locked"}}, 1));
  auto client = joined(server.address(), 0, 1);
  const auto gradient = minusOnes();
  std::vector<float> values(gradient.size());
  PSD_REQUIRE_OK(client->push(Step{1}, gradient, 1, {}).wait());
  auto change = server.reload(configOf({{"type", "locked"}}, 16));
  PSD_REQUIRE_OK(change);
  CHECK(*change == "optimizer.lr: 1.0 -> 16.0");
  PSD_REQUIRE_OK(client->push(Step{2}, gradient, 1, {}).wait());
  PSD_REQUIRE_OK(client->pull(values).wait());
  CHECK(values[0] == 17);
  auto same = server.reload(configOf({{"type", "locked"}}, 16));
  PSD_REQUIRE_OK(same);
  CHECK(*same == "no changes");
}

TEST_CASE("Reload: limits.staged_bytes holds on a device with memory of its own, and can be raised") {
  const auto configOf = [](uint64_t stagedBytes) {
    return Json{{"policy", {{"type", "sync"}}}, {"shards", 1}, {"limits", {{"staged_bytes", stagedBytes}}}};
  };
  constexpr uint64_t kOneGradient = 65536;  // what the pool allocates for it
  const auto device = std::make_shared<testing::DeviceBackend>();
  testing::LocalServer server(configOf(kOneGradient), device);
  auto first = joined(server.address(), 0, 2), second = joined(server.address(), 1, 2);
  const auto gradient = minusOnes();
  auto waiting = first->push(Step{1}, gradient, 1, {});
  server.statusWhen([](const Json& status) { return !status["waiting"].empty(); });
  CHECK(device->stagedBytes() == kOneGradient);
  CHECK(server.status()["staged_bytes"] == 0);  // the host has released it
  const auto refused = second->push(Step{1}, gradient, 1, {}).wait();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(refused.error().message.find("not enough memory to gather a gradient (limits.staged_bytes)") !=
        std::string::npos);
  PSD_REQUIRE_OK(server.reload(configOf(2 * kOneGradient)));
  PSD_REQUIRE_OK(second->push(Step{1}, gradient, 1, {}).wait());
  PSD_REQUIRE_OK(waiting.wait());
  CHECK(device->stagedBytes() == 0);
}

TEST_CASE("Reload: a policy that stays as it is keeps its open round") {
  const Json sync = {{"type", "sync"}, {"start_trainers", 2}};
  testing::LocalServer server(configOf(sync, 1));
  auto first = joined(server.address(), 0, 2), second = joined(server.address(), 1, 2);
  const auto gradient = minusOnes();
  auto waiting = first->push(Step{1}, gradient, 1, {});
  server.statusWhen([](const Json& status) { return !status["waiting"].empty(); });
  PSD_REQUIRE_OK(server.reload(configOf(sync, 16)));
  REQUIRE_FALSE(server.status()["waiting"].empty());
  auto answer = second->push(Step{1}, gradient, 1, {}).wait();
  PSD_REQUIRE_OK(answer);
  CHECK(answer->outcome == PushOutcome::applied);
  PSD_REQUIRE_OK(waiting.wait());
  std::vector<float> values(gradient.size());
  PSD_REQUIRE_OK(second->pull(values).wait());
  CHECK(values[0] == 16);
  CHECK(server.status()["shards"][0]["version"] == 1);
}

TEST_CASE("Reload: start_trainers is not waited for again when training has begun") {
  Json sync = {{"type", "sync"}, {"start_trainers", 2}};
  testing::LocalServer server(configOf(sync));
  auto first = joined(server.address(), 0, 2), second = joined(server.address(), 1, 2);
  const auto gradient = minusOnes();
  auto waiting = first->push(Step{1}, gradient, 1, {});
  PSD_REQUIRE_OK(second->push(Step{1}, gradient, 1, {}).wait());
  PSD_REQUIRE_OK(waiting.wait());
  PSD_REQUIRE_OK(second->leave());
  sync["aggregator"] = {{"type", "median"}};
  PSD_REQUIRE_OK(server.reload(configOf(sync)));
  PSD_REQUIRE_OK(first->push(Step{2}, gradient, 1, std::vector<Version>(3, Version{1})).wait());
  CHECK(server.status()["shards"][0]["version"] == 2);
}

TEST_CASE("Reload: what cannot change is refused, and nothing changes") {
  testing::LocalServer server(configOf({{"type", "locked"}}));
  auto client = joined(server.address(), 0, 1);
  Json shards = configOf({{"type", "sync"}}), optimizer = shards, slices = shards, broken = shards;
  shards["shards"] = 4;
  optimizer["optimizer"]["momentum"] = 0.9;
  slices["limits"] = {{"slice_bytes", 8192}};
  broken["policy"] = {{"type", "synk"}};
  const std::vector<std::pair<Json, std::string>> refused = {
      {shards, "shards: cannot change while the daemon runs (3 -> 4)"},
      {optimizer,
       "optimizer: cannot change while the daemon runs from 'sgd lr=1' to 'sgd lr=1 momentum=0.9', "
       "which keeps other state per weight"},
      {slices, "limits.slice_bytes: cannot change while the daemon runs (4194304 -> 8192)"},
  };
  for (const auto& [config, message] : refused) {
    auto change = server.reload(config);
    REQUIRE_FALSE(change.ok());
    CHECK(change.error().code == ErrorCode::invalidArgument);
    CHECK(change.message().ends_with(": " + message));  // after the daemon's address
  }
  CHECK_FALSE(server.reload(broken).ok());
  CHECK(server.status()["policy"] == "locked");
  CHECK(server.status()["counters"]["reloads_refused"] == 4);
  PSD_REQUIRE_OK(client->push(Step{1}, minusOnes(), 1, {}).wait());
}

TEST_CASE("Reload: a gradient that is half there holds it up no longer than limits.drain_ms") {
  Json config = configOf({{"type", "locked"}});
  config["limits"] = {{"drain_ms", 50}};
  testing::LocalServer server(config);
  auto client = joined(server.address(), 0, 1);
  const auto gradient = minusOnes();
  auto push = client->beginPush(Step{1}, gradient, 1, {});
  push->ready(0, 1024);
  server.statusWhen([](const Json& status) { return status["counters"]["push_slices"] != 0; });
  Json next = config;
  next["policy"] = {{"type", "hogwild"}};
  auto change = server.reload(next);
  REQUIRE_FALSE(change.ok());
  CHECK(change.error().code == ErrorCode::deadlineExceeded);
  CHECK(server.status()["policy"] == "locked");
  push->ready(1024, gradient.size() - 1024);
  PSD_REQUIRE_OK(push->finish().wait());
  PSD_REQUIRE_OK(server.reload(next));
}

TEST_CASE("Reload: one that is refused because a gradient is half there leaves everything as it was") {
  Json config = configOf({{"type", "sync"}, {"start_trainers", 2}});
  config["limits"] = {{"drain_ms", 50}};
  testing::LocalServer server(config);
  auto first = joined(server.address(), 0, 2), second = joined(server.address(), 1, 2);
  const auto gradient = minusOnes();
  // The first one's gradient waits for the round; a part of the second one's has arrived.
  auto waiting = first->push(Step{1}, gradient, 1, {});
  auto half = second->beginPush(Step{1}, gradient, 1, {});
  half->ready(0, 1024);
  // Everything that does not change without a reload.
  const auto look = [&] {
    const Json status = server.status();
    Json seen;
    for (const char* key : {"policy", "optimizer", "shards", "world_size"}) seen[key] = status[key];
    for (const Json& round : status["waiting"])
      seen["waiting"].push_back({round["ranks"], round["what"], round["joins"]});
    return seen;
  };
  server.statusWhen([](const Json& status) {
    return !status["waiting"].empty() && status["counters"]["push_slices"] == 4;  // three shards and one
  });
  const Json before = look();
  Json next = configOf({{"type", "hogwild"}}, 16);
  next["limits"] = config["limits"];
  auto change = server.reload(next);
  REQUIRE_FALSE(change.ok());
  CHECK(change.error().code == ErrorCode::deadlineExceeded);
  CHECK(look() == before);
  CHECK(server.status()["counters"]["reloads_refused"] == 1);
  CHECK_FALSE(waiting.done());
  // The open round closes with both, at the old rate.
  half->ready(1024, gradient.size() - 1024);
  auto answer = half->finish().wait();
  PSD_REQUIRE_OK(answer);
  CHECK(answer->outcome == PushOutcome::applied);
  PSD_REQUIRE_OK(waiting.wait());
  std::vector<float> values(gradient.size());
  PSD_REQUIRE_OK(second->pull(values).wait());
  CHECK(values[0] == 1);
  CHECK(server.status()["shards"][0]["version"] == 1);
  // The reload that was rejected then succeeds now.
  PSD_REQUIRE_OK(server.reload(next));
  CHECK(server.status()["policy"] == "hogwild");
}

}  // namespace
}  // namespace psd::reload_test
