// Machines whose daemons are averaged by a common root daemon.

#include "trainer/bridge/bridge.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "common/types/model_layout.h"
#include "test/support/arena_values.h"
#include "test/support/catch.h"
#include "test/support/holds_soon.h"
#include "test/support/local_server.h"
#include "test/support/memory_env.h"
#include "test/support/temp_dir.h"

namespace psd::bridge_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::everyParameter;
using testing::LocalServer;

const ModelSpec kModel{"bridged", {{"a", DType::f32, {3000}}, {"b", DType::f32, {500}}}};

Json machineConfig(const std::string& policy) {
  return {{"policy", {{"type", policy}}},
          {"shards", 1},
          {"threads", 2},
          {"optimizer", {{"type", "sgd"}, {"lr", 1}}}};
}

Json rootConfig(const Json& policy, double lr = 1, uint32_t machines = 2) {
  return {{"policy", policy},
          {"threads", 2},
          {"world_size", machines},
          {"optimizer", {{"type", "sgd"}, {"lr", lr}}}};
}

std::unique_ptr<Client> connectTo(const LocalServer& server) {
  ClientOptions options;
  options.servers = {server.unixAddress()};
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  return *std::move(client);
}

using Held = std::pair<std::vector<float>, uint64_t>;

/// The daemon's parameters, and the version of its first shard. Callable from any thread; uses no Catch
/// macros, which are limited to the test's thread.
Result<Held> look(const LocalServer& server) {
  ClientOptions options;
  options.servers = {server.unixAddress()};
  PSD_ASSIGN_OR_RETURN(const auto client, Client::connect(options));
  PSD_RETURN_IF_ERROR(client->observe({}).status());
  std::vector<float> values(ModelLayout(kModel).totalElements());
  PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client->pull(values).wait());
  return Held{std::move(values), pulled.versions.front().value};
}

Held valuesOf(const LocalServer& server) {
  auto held = look(server);
  PSD_REQUIRE_OK(held);
  return *std::move(held);
}

bool has(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

/// The largest difference of two elements.
double largest(std::span<const float> a, std::span<const float> b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); i++) most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  return most;
}

/// A trainer whose gradients are all −1 or all +1, so that an update changes each parameter by 1. Runs until
/// it is stopped.
class CountingTrainer {
 public:
  CountingTrainer(const LocalServer& server, uint32_t rank, uint32_t worldSize, float gradient)
      : thread_([this, &server, rank, worldSize, gradient] {
          ended_ = train(server, {Rank{rank}, worldSize}, gradient);
        }) {}
  ~CountingTrainer() { end(); }
  uint64_t pushed() const { return pushed_; }
  void end() {
    toldToEnd_ = true;
    if (!thread_.joinable()) return;
    thread_.join();
    CHECK(ended_.message() == "");
  }

 private:
  Status train(const LocalServer& server, const Membership& membership, float gradient) {
    const std::vector<float> zeros = everyParameter(kModel, 0), all = everyParameter(kModel, gradient);
    ClientOptions options;
    options.servers = {server.unixAddress()};
    PSD_ASSIGN_OR_RETURN(const auto client, Client::connect(options));
    PSD_RETURN_IF_ERROR(
        client->join(membership, kModel, [&] { return std::span<const float>(zeros); }).status());
    for (uint64_t step = 1; !toldToEnd_; step++) {
      PSD_RETURN_IF_ERROR(client->push(Step{step}, all, 1, {}).wait().status());
      pushed_++;
    }
    return client->leave();
  }

  std::atomic<bool> toldToEnd_{false};
  std::atomic<uint64_t> pushed_{0};
  Status ended_;  // set when the thread has ended
  std::thread thread_;
};

BridgeOptions optionsOf(const LocalServer& machine, const LocalServer& root, uint32_t rank,
                        const testing::TempDir& folder) {
  BridgeOptions options;
  options.local.servers = {machine.unixAddress()};
  options.root.servers = {root.address()};
  options.membership = {Rank{rank}, 0};
  options.folder = folder.file("bridge");
  options.retryTimeout = std::chrono::seconds(20);
  return options;
}

/// A bridge on a thread of its own, stopped by the destructor.
class RunningBridge {
 public:
  RunningBridge(BridgeOptions options, std::function<void(const BridgeExchange&)> tell = nullptr)
      : bridge_(std::move(options), Client::connect, *env_, std::move(tell)), thread_([this] {
          ended_ = bridge_.run(stop_);
          done_ = true;
        }) {}
  ~RunningBridge() { static_cast<void>(stop()); }
  Status stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return ended_;
  }
  bool done() const { return done_; }

 private:
  const std::unique_ptr<Env> env_ = makePosixEnv();
  std::atomic<bool> stop_{false}, done_{false};
  Status ended_;
  Bridge bridge_;
  std::thread thread_;
};

void until(const std::function<bool()>& condition) { REQUIRE(testing::holdsSoon(condition)); }

/// A machine whose only trainer counts up, alone under a root.
struct OneMachine {
  explicit OneMachine(const Json& averaging = {{"type", "local_sgd"}, {"period", 10}},
                      const std::string& policy = "locked")
      : root(rootConfig(averaging, 1, 1)), machine(machineConfig(policy)), trainer(machine, 0, 1, -1) {}

  BridgeOptions options() const { return optionsOf(machine, root, 0, folder); }

  const LocalServer root, machine;
  const testing::TempDir folder;
  CountingTrainer trainer;
};

/// Checks each exchange of a machine against the bound, and keeps the common parameters at that time.
struct Watch {
  const LocalServer& machine;
  std::mutex mutex;
  std::map<uint64_t, std::vector<float>> common;  // by the root's version
  std::atomic<uint64_t> exchanges{0};
  std::atomic<uint64_t> without{0};  // exchanges with other machines' updates only: this machine's were late
  double largestExcess = 0;          // of the distance to the common parameters over the updates in flight
  uint64_t inFlight = 0;

  void note(const BridgeExchange& exchange) {
    const Result<Held> held = look(machine);
    const std::lock_guard hold(mutex);
    if (!held.ok()) {
      largestExcess = std::numeric_limits<double>::infinity();
      return;
    }
    const auto& [values, version] = *held;
    const uint64_t since = version > exchange.counted ? version - exchange.counted : 0;
    largestExcess = std::max(largestExcess, largest(values, exchange.common) - static_cast<double>(since));
    inFlight = std::max(inFlight, since);
    common[exchange.round.value].assign(exchange.common.begin(), exchange.common.end());
    (exchange.updates > 0 ? exchanges : without)++;
  }
};

TEST_CASE("Machines differ by no more than the updates in flight after each exchange") {
  for (const std::string policy : {"locked", "bounded_staleness"}) {
    for (const Json& averaging :
         {Json{{"type", "local_sgd"}, {"period", 20}, {"slow_lr", 0.5}, {"slow_momentum", 0.25}},
          Json{{"type", "diloco"}, {"period", 20}, {"inner", {{"type", "sgd"}, {"lr", 1}}}}}) {
      INFO(policy << ", " << averaging);
      const LocalServer root(rootConfig(averaging));
      const LocalServer a(machineConfig(policy)), b(machineConfig(policy));
      const testing::TempDir folders[2];
      Watch watches[2] = {{a, {}, {}, 0}, {b, {}, {}, 0}};
      {
        RunningBridge one(optionsOf(a, root, 0, folders[0]),
                          [&](const auto& each) { watches[0].note(each); });
        RunningBridge two(optionsOf(b, root, 1, folders[1]),
                          [&](const auto& each) { watches[1].note(each); });
        CountingTrainer up(a, 0, 2, -1), more(a, 1, 2, -1), down(b, 0, 2, 1), wave(b, 1, 2, -1);
        until([&] { return watches[0].exchanges > 12 && watches[1].exchanges > 12; });
      }
      // Rounding: values of some thousand have a granularity of about 2⁻¹².
      for (const Watch& watch : watches) {
        CHECK(watch.largestExcess < 0.01);
        CHECK(watch.inFlight > 0);
      }
      size_t compared = 0;
      for (const auto& [round, values] : watches[0].common) {
        const auto other = watches[1].common.find(round);
        if (other == watches[1].common.end()) continue;
        compared++;
        INFO("round " << round);
        CHECK(largest(values, other->second) == 0);
      }
      CHECK(compared >= 10);
    }
  }
}

TEST_CASE(
    "What races lose where nothing locks does not add up: machines stay within a few periods of each other") {
  constexpr double kPeriod = 20;
  constexpr uint64_t kExchanges = 30;  // by then trainers alone would be kExchanges * kPeriod apart
  const LocalServer root(rootConfig({{"type", "local_sgd"}, {"period", static_cast<int>(kPeriod)}}));
  const LocalServer a(machineConfig("hogwild")), b(machineConfig("hogwild"));
  const testing::TempDir folders[2];
  Watch watches[2] = {{a, {}, {}, 0}, {b, {}, {}, 0}};
  {
    RunningBridge one(optionsOf(a, root, 0, folders[0]), [&](const auto& each) { watches[0].note(each); });
    RunningBridge two(optionsOf(b, root, 1, folders[1]), [&](const auto& each) { watches[1].note(each); });
    CountingTrainer up(a, 0, 2, -1), more(a, 1, 2, -1), down(b, 0, 2, 1), further(b, 1, 2, 1);
    until([&] { return watches[0].exchanges > kExchanges && watches[1].exchanges > kExchanges; });
  }
  // An element whose difference a push has overwritten lacks it until the next exchange, which treats it as
  // trained.
  for (const Watch& watch : watches) CHECK(watch.largestExcess < 8 * kPeriod);
}

TEST_CASE("What a machine pushes too late for a round stays in it, for the next one") {
  Json averaging{{"type", "local_sgd"}, {"period", 20}, {"backup_trainers", 1}};
  const LocalServer root(rootConfig(averaging)), a(machineConfig("locked")), b(machineConfig("locked"));
  const testing::TempDir folders[2];
  Watch watches[2] = {{a, {}, {}, 0}, {b, {}, {}, 0}};
  {
    RunningBridge one(optionsOf(a, root, 0, folders[0]), [&](const auto& each) { watches[0].note(each); });
    RunningBridge two(optionsOf(b, root, 1, folders[1]), [&](const auto& each) { watches[1].note(each); });
    CountingTrainer up(a, 0, 1, -1), down(b, 0, 1, 1);
    until([&] {
      return watches[0].exchanges > 5 && watches[1].exchanges > 5 &&
             watches[0].without + watches[1].without > 8;
    });
  }
  for (const Watch& watch : watches) CHECK(watch.largestExcess < 0.01);
}

TEST_CASE("Of one machine under the root, every update is at both once") {
  const std::string policy = GENERATE("hogwild", "locked", "bounded_staleness");
  INFO(policy);
  OneMachine one({{"type", "local_sgd"}, {"period", 7}}, policy);
  RunningBridge bridge(one.options());
  until([&] { return one.trainer.pushed() > 300; });
  one.trainer.end();
  const std::vector<float> all = everyParameter(kModel, static_cast<float>(one.trainer.pushed()));
  one.root.statusWhen(
      [](const Json& status) { return status["trainers"].empty() && status["model"] != nullptr; });
  CHECK(largest(valuesOf(one.root).first, all) == 0);
  CHECK(largest(valuesOf(one.machine).first, all) == 0);
  PSD_REQUIRE_OK(bridge.stop());
}

TEST_CASE("Under easgd a machine and the centre move towards each other by the same difference") {
  OneMachine one({{"type", "easgd"}, {"period", 5}, {"alpha", 0.25}});
  std::atomic<uint64_t> exchanges{0};
  std::atomic<float> begin{-1};  // of both
  RunningBridge bridge(one.options(), [&](const BridgeExchange& each) {
    if (begin < 0) begin = each.common[0];
    exchanges += each.updates > 0 ? 1 : 0;
  });
  until([&] { return exchanges > 10; });
  one.trainer.end();
  one.root.statusWhen([](const Json& status) { return status["trainers"].empty(); });
  // What one side gains the other loses: the sum equals both initial values plus everything trained.
  const auto [centre, rounds] = valuesOf(one.root);
  const auto [own, version] = valuesOf(one.machine);
  const float total = begin + static_cast<float>(one.trainer.pushed());
  for (const size_t i : {size_t{0}, size_t{2999}}) CHECK(std::abs(centre[i] + own[i] - total) < 0.01f);
  CHECK(centre[0] > 0);
  CHECK(own[0] > centre[0]);
}

TEST_CASE("A machine that has values of its own gets the root's, and keeps what it trains after that") {
  OneMachine one;
  {  // another trainer initializes the root
    const auto client = connectTo(one.root);
    const std::vector<float> values = everyParameter(kModel, 1000);
    PSD_REQUIRE_OK(client->join({Rank{0}, 1}, kModel, [&] { return std::span<const float>(values); }));
    PSD_REQUIRE_OK(client->leave());
  }
  until([&] { return one.trainer.pushed() > 50; });
  std::atomic<uint64_t> exchanges{0};
  RunningBridge bridge(one.options(),
                       [&](const BridgeExchange& each) { exchanges += each.updates > 0 ? 1 : 0; });
  until([&] { return exchanges > 3; });
  one.trainer.end();
  one.root.statusWhen([](const Json& status) { return status["trainers"].empty(); });
  const auto [at, rounds] = valuesOf(one.root);
  CHECK(largest(at, valuesOf(one.machine).first) == 0);
  CHECK(at[0] > 1000);
  CHECK(at[0] <= 1000 + static_cast<float>(one.trainer.pushed()) - 50);
}

TEST_CASE("A bridge that is stopped loses nothing, and the next one resumes") {
  OneMachine one;
  for (uint64_t times = 1; times <= 8; times++) {
    RunningBridge bridge(one.options());
    until([&, before = one.trainer.pushed()] { return one.trainer.pushed() > before + 40; });
    PSD_REQUIRE_OK(bridge.stop());
    until([&, before = one.trainer.pushed()] { return one.trainer.pushed() > before + 25; });
  }
  one.trainer.end();
  RunningBridge bridge(one.options());
  const std::vector<float> all = everyParameter(kModel, static_cast<float>(one.trainer.pushed()));
  until([&] {
    const auto held = look(one.root);  // there may be no model yet
    return held.ok() && largest(held->first, all) == 0;
  });
  CHECK(largest(valuesOf(one.machine).first, all) == 0);
}

TEST_CASE("A bridge that comes when the trainers have gone brings the root what they did") {
  OneMachine one;
  until([&] { return one.trainer.pushed() > 20; });
  one.trainer.end();
  RunningBridge bridge(one.options());
  one.root.statusWhen(
      [](const Json& status) { return status["model"] != nullptr && status["model"]["ready"]; });
  one.root.statusWhen([](const Json& status) { return status["trainers"].empty(); });
  CHECK(valuesOf(one.root).first[0] == static_cast<float>(one.trainer.pushed()));
  PSD_REQUIRE_OK(bridge.stop());
}

TEST_CASE("A bridge is no trainer: it has no rank, and status tells of it") {
  OneMachine one;
  RunningBridge bridge(one.options());
  const Json status = one.machine.statusWhen(
      [](const Json& now) { return now["bridge"] != nullptr && now["bridge"]["differences"] > 3; });
  CHECK(status["trainers"].size() == 1);
  CHECK(status["trainers"][0]["rank"] == 0);
  CHECK(status["world_size"] == 1);
  CHECK(status["bridge"]["connected"] == true);
  const Json averaged = one.root.statusWhen(
      [](const Json& now) { return !now["trainers"].empty() && !now["trainers"][0]["reports"].empty(); });
  CHECK(averaged["trainers"][0]["reports"][0]["name"] == "updates");
  CHECK(averaged["trainers"][0]["reports"][0]["value"] >= 10);
  CHECK(averaged["bridge"] == nullptr);
  one.trainer.end();
  PSD_REQUIRE_OK(bridge.stop());
  one.machine.statusWhen([](const Json& now) { return now["bridge"] == nullptr; });
}

TEST_CASE("What a bridge cannot lie between is refused in one line") {
  const auto refused = [](Json root, Json machine, const std::string& words) {
    INFO(words);
    root["world_size"] = 1;
    const LocalServer averaging(root), local(machine);
    const testing::TempDir folder;
    const auto client = connectTo(local);
    const std::vector<float> zeros = everyParameter(kModel, 0);
    PSD_REQUIRE_OK(client->join({Rank{0}, 1}, kModel, [&] { return std::span<const float>(zeros); }));
    RunningBridge bridge(optionsOf(local, averaging, 0, folder));
    until([&] { return bridge.done(); });
    const Status ended = bridge.stop();
    REQUIRE_FALSE(ended.ok());
    CHECK(has(ended.message(), words));
    CHECK(ended.message().find('\n') == std::string::npos);
  };
  const Json averages = rootConfig({{"type", "local_sgd"}, {"period", 10}});
  refused(averages, machineConfig("sync"), "expected hogwild, locked or bounded_staleness");
  Json derived = machineConfig("locked");
  derived["optimizer"] = {{"type", "ftrl"}};
  refused(averages, derived, "optimizer ftrl lr=0.1: a bridge adds to the parameters between updates");
  refused(rootConfig({{"type", "hogwild"}}), machineConfig("locked"),
          "expected local_sgd, easgd, diloco or async_diloco");
  refused(
      rootConfig(
          {{"type", "diloco"}, {"period", 10}, {"fragments", 2}, {"inner", {{"type", "sgd"}, {"lr", 1}}}}),
      machineConfig("locked"), "supports neither `fragments` nor a `delay`");
}

TEST_CASE("A model with embedding tables has no bridge") {
  const LocalServer machine(machineConfig("locked"));
  ClientOptions options;
  options.servers = {machine.unixAddress()};
  options.bridges = true;
  const auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  ModelSpec model = kModel;
  model.tables.push_back({.name = "t", .dim = 4});
  const std::vector<float> zeros = everyParameter(kModel, 0);
  const auto joined = (*client)->join({}, model, [&] { return std::span<const float>(zeros); });
  REQUIRE_FALSE(joined.ok());
  CHECK(joined.error().code == ErrorCode::invalidArgument);
  CHECK(has(joined.message(), "embedding tables"));
}

TEST_CASE("A difference is added past the optimizer, whose state stays") {
  Json config = machineConfig("locked");
  config["optimizer"] = {{"type", "adam"}, {"lr", 0.5}};
  const LocalServer machine(config);
  const auto trainer = connectTo(machine);
  const std::vector<float> zeros = everyParameter(kModel, 0), ones = everyParameter(kModel, 1);
  PSD_REQUIRE_OK(trainer->join({Rank{0}, 1}, kModel, [&] { return std::span<const float>(zeros); }));
  ClientOptions options;
  options.servers = {machine.unixAddress()};
  options.bridges = true;
  const auto bridge = Client::connect(options);
  PSD_REQUIRE_OK(bridge);
  PSD_REQUIRE_OK((*bridge)->join({}, kModel, [&] { return std::span<const float>(zeros); }));
  const std::vector<float> difference = everyParameter(kModel, -8);
  const auto added = (*bridge)->push(Step{1}, difference, 1, {}).wait();
  PSD_REQUIRE_OK(added);
  CHECK(added->versions.front() == Version{1});
  CHECK(largest(valuesOf(machine).first, everyParameter(kModel, 8)) == 0);
  // Repeated: it is recognized.
  PSD_REQUIRE_OK((*bridge)->push(Step{1}, difference, 1, {}).wait());
  CHECK(valuesOf(machine).second == 1);
  const auto here = (*bridge)->progress();
  PSD_REQUIRE_OK(here);
  CHECK(here->versions == std::vector<Version>{Version{1}});
  CHECK(here->began == std::vector<Version>{Version{0}});
  CHECK(here->trainers == 1);
  CHECK_FALSE(here->over);
  CHECK_FALSE(trainer->progress().ok());
  // A second one finds the slot taken.
  const auto other = Client::connect(options);
  PSD_REQUIRE_OK(other);
  const auto refused = (*other)->join({}, kModel, [&] { return std::span<const float>(zeros); });
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::rankTaken);
  CHECK(has(refused.message(), "the bridge's place"));
}

TEST_CASE("The state of a bridge comes back from its file, and one bridge has it") {
  testing::MemoryEnv env;
  auto file = BridgeFile::open(env, "state");
  PSD_REQUIRE_OK(file);
  const auto fresh = file->load();
  PSD_REQUIRE_OK(fresh);
  CHECK(fresh->phase == BridgeState::Phase::fresh);
  BridgeState state;
  state.phase = BridgeState::Phase::pushing;
  state.incarnation = 7;
  state.rank = Rank{3};
  state.signature = 11;
  state.pushed = Step{5};
  state.added = Step{4};
  state.updates = 40;
  state.counted = {Version{200}, Version{199}};
  state.rootDaemon = 1;
  state.localDaemon = 2;
  state.basis = {Version{4}};
  state.seen = {Version{210}, Version{211}};
  state.base = {1, 2, 3};
  state.other = {4, 5, 6};
  PSD_REQUIRE_OK(file->save(state));
  const auto loaded = file->load();
  PSD_REQUIRE_OK(loaded);
  CHECK(loaded->phase == state.phase);
  CHECK(loaded->incarnation == 7);
  CHECK(loaded->rank == Rank{3});
  CHECK(loaded->pushed == Step{5});
  CHECK(loaded->added == Step{4});
  CHECK(loaded->counted == state.counted);
  CHECK(loaded->localDaemon == 2);
  CHECK(loaded->seen == state.seen);
  CHECK(loaded->base == state.base);
  CHECK(loaded->other == state.other);
  // A flipped bit is detected.
  const std::string path = "state/bridge.safetensors", saved = env.files().at(path);
  for (size_t at = saved.size() - 90; at < saved.size(); at += 7) {
    std::string damaged = saved;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    PSD_REQUIRE_OK(writeFileAtomically(
        env, path, [&](WritableFile& out) { return out.append(std::as_bytes(std::span(damaged))); }));
    const auto refused = file->load();
    REQUIRE_FALSE(refused.ok());
    CHECK(has(refused.message(), "is damaged"));
  }
  const testing::TempDir folder;
  const auto disk = makePosixEnv();
  const auto held = BridgeFile::open(*disk, folder.file("held"));
  PSD_REQUIRE_OK(held);
  const auto second = BridgeFile::open(*disk, folder.file("held"));
  REQUIRE_FALSE(second.ok());
  CHECK(has(second.message(), "another bridge"));
}

}  // namespace
}  // namespace psd::bridge_test
