// Acknowledged pushes are in the model once: trainers behind a proxy that harms their connections. Every
// gradient is −1 and the learning rate 1, so that each parameter counts the pushes that reached it.

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <spdlog/spdlog.h>

#include "common/types/model_layout.h"
#include "test/fault/fault_proxy.h"
#include "test/fault/patient_join.h"
#include "test/support/arena_values.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/random.h"

namespace psd::faults_test {
namespace {

using testing::FaultProxy;
using testing::joinWithRetry;
using testing::LocalServer;
using testing::Random;
using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kPatience{60};

uint64_t fromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

const ModelSpec& model() {
  static const ModelSpec spec{"counters", {{"a", DType::f32, {3000}}, {"b", DType::f32, {500}}}};
  return spec;
}

uint64_t elements() { return ModelLayout(model()).totalElements(); }

/// The same value for every parameter; zero in the padding.
std::vector<float> all(float value) { return testing::everyParameter(model(), value); }

struct Schedule {
  std::string policy;
  uint32_t trainers = 1, inflight = 1;
  uint64_t pushes = 0;  ///< per trainer
  uint64_t deaths = 0;  ///< per trainer: its client vanishes and another one starts
  uint64_t messagesMost = 0;
  uint32_t shards = 1, threads = 1;
  uint64_t chunkBytes = 0;
  uint32_t connections = 1;  ///< per trainer
};

Schedule draw(Random& random) {
  Schedule schedule;
  // Under hogwild two racing updates may lose one another's elements, so there is only one trainer.
  schedule.policy = random.oneIn(2) ? "hogwild" : "locked";
  schedule.trainers = schedule.policy == "hogwild" ? 1 : static_cast<uint32_t>(random.between(1, 3));
  schedule.inflight = static_cast<uint32_t>(random.between(1, 4));
  schedule.pushes = random.between(5, 15);
  schedule.deaths = random.between(0, 2);
  // A trainer needs a dozen messages to join; with far fewer hardly any connection would get a push through.
  schedule.messagesMost = random.between(20, 100);
  schedule.shards = static_cast<uint32_t>(random.between(1, 3));
  schedule.threads = static_cast<uint32_t>(random.between(1, 2));
  schedule.chunkBytes = random.oneIn(2) ? 1024 : 16384;
  schedule.connections = static_cast<uint32_t>(random.between(1, 3));
  return schedule;
}

/// Totals of one trainer over all its lives.
struct Done {
  uint64_t acknowledged = 0;
  uint64_t uncertain = 0;  ///< pushes left without an answer when a life ended
  std::string trouble;
};

Status pushAll(Client& client, uint64_t pushes, uint32_t inflight, const std::vector<float>& gradient,
               Done& done) {
  std::vector<Pending<PushInfo>> open;
  for (uint64_t step = 1; step <= pushes || !open.empty(); step++) {
    if (step <= pushes) open.push_back(client.push(Step{step}, gradient, 1, {}));
    if (step < pushes && open.size() < inflight) continue;
    PSD_RETURN_IF_ERROR(open.front().wait());
    open.erase(open.begin());
    done.acknowledged++;
  }
  return {};
}

/// One life: joins, pushes, and leaves or vanishes with its last pushes unanswered.
Status live(const std::string& address, const Schedule& schedule, Rank rank, bool vanishes, Done& done) {
  ClientOptions options;
  options.servers = {address};
  options.chunkBytes = schedule.chunkBytes;
  options.connections = schedule.connections;
  options.retryTimeout = std::chrono::seconds(60);
  const std::vector<float> zeros = all(0), gradient = all(-1);  // outlive the client
  PSD_ASSIGN_OR_RETURN(auto client,
                       joinWithRetry(options, {rank, schedule.trainers}, model(), zeros, kPatience));
  PSD_RETURN_IF_ERROR(pushAll(*client, schedule.pushes, schedule.inflight, gradient, done));
  if (!vanishes) return client->leave();
  std::vector<Pending<PushInfo>> last;
  for (uint32_t i = 1; i <= schedule.inflight; i++) {
    last.push_back(client->push(Step{schedule.pushes + i}, gradient, 1, {}));
    done.uncertain++;
  }
  return {};
}

Done trainer(const std::string& address, const Schedule& schedule, Rank rank) {
  Done done;
  for (uint64_t life = 0; life <= schedule.deaths; life++) {
    Status status = live(address, schedule, rank, life < schedule.deaths, done);
    if (!status.ok()) done.trouble += status.message() + "; ";
  }
  return done;
}

std::vector<float> pulled(const LocalServer& server) {
  ClientOptions options;
  options.servers = {server.address()};
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  PSD_REQUIRE_OK((*client)->observe(model()));
  std::vector<float> values(elements());
  PSD_REQUIRE_OK((*client)->pull(values).wait());
  return values;
}

/// Returns the number of harmed connections.
uint64_t runSchedule(uint64_t seed) {
  Random random(seed);
  const Schedule schedule = draw(random);
  INFO("FAULT_SEED=" << seed << ": " << schedule.policy << ", " << schedule.trainers << " trainers, "
                     << schedule.connections << " connections each, " << schedule.pushes << " pushes, "
                     << schedule.inflight << " in flight, " << schedule.deaths << " deaths, connections of "
                     << schedule.messagesMost << " messages, " << schedule.shards << " shards, "
                     << schedule.threads << " loops, slices of " << schedule.chunkBytes << " bytes");
  const LocalServer server({{"policy", {{"type", schedule.policy}}},
                            {"shards", schedule.shards},
                            {"threads", schedule.threads},
                            {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
                            {"membership", {{"lease_ms", 2000}, {"grace_ms", 2000}}}});
  FaultProxy proxy(server.address(), seed, schedule.messagesMost);
  std::vector<Done> done(schedule.trainers);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < schedule.trainers; rank++) {
    threads.emplace_back([&, rank] { done[rank] = trainer(proxy.address(), schedule, Rank{rank}); });
  }
  for (std::thread& thread : threads) thread.join();

  uint64_t acknowledged = 0, uncertain = 0;
  for (const Done& each : done) {
    CHECK(each.trouble == "");
    acknowledged += each.acknowledged;
    uncertain += each.uncertain;
  }
  CHECK(acknowledged == schedule.trainers * (schedule.deaths + 1) * schedule.pushes);
  const std::vector<float> values = pulled(server);
  const ModelLayout layout(model());
  for (const TensorPlace& place : layout.places()) {
    for (uint64_t i = place.begin; i < place.begin + place.count; i++) {
      const auto count = static_cast<uint64_t>(values[i]);
      INFO("element " << i << " counts " << values[i] << ", acknowledged " << acknowledged << ", uncertain "
                      << uncertain);
      if (count < acknowledged || count > acknowledged + uncertain) FAIL("a push was lost or came twice");
    }
  }
  return proxy.harmed();
}

TEST_CASE("Faults: every acknowledged push is in the model, once") {
  const uint64_t schedules = fromEnvironment("FAULT_SCHEDULES", 200),
                 first = fromEnvironment("FAULT_SEED", 1);
  uint64_t harmed = 0;
  spdlog::set_level(spdlog::level::off);
  for (uint64_t seed = first; seed < first + schedules; seed++) harmed += runSchedule(seed);
  INFO(harmed << " connections were harmed in " << schedules << " schedules");
  CHECK((harmed > schedules / 2 || schedules < 10));
}

}  // namespace
}  // namespace psd::faults_test
