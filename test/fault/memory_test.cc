// The memory that peers make the daemon hold stays within its limits on a slow disk: resident memory is
// measured while trainers push more than the disk takes and readers stop in the middle of their pulls.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/types/model_layout.h"
#include "test/integration/daemon_process.h"
#include "test/support/raw_peer.h"
#include "trainer/client/api/client.h"

namespace psd::memory_test {
namespace {

using namespace testing;

#if defined(PSD_SANITIZE_ADDRESS) || defined(PSD_SANITIZE_THREAD)
constexpr bool kSanitized = true;  // memory figures are meaningless then
#else
constexpr bool kSanitized = false;
#endif

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kModelBytes = 8 * kMiB;
constexpr uint32_t kTrainers = 4, kPushes = 25;
constexpr size_t kReaders = 1'000;
// See docs/reference/configuration.md, limits.
constexpr uint64_t kOfConnection = 192 << 10, kOfLoop = 96 * kMiB;

ModelSpec model() { return {"large", {{"w", DType::f32, {kModelBytes / sizeof(float)}}}}; }

/// Sets one field of fault_preload.cc's control file in place (the daemon maps it); the others stay 0.
void slowDown(const std::string& path, uint32_t syncMs) {
  std::fstream control(path, std::ios::in | std::ios::out | std::ios::binary);
  control.seekp(12);
  control.write(reinterpret_cast<const char*>(&syncMs), sizeof syncMs);
}

/// Pushes all gradients at once, and waits for the answers.
Status pushAll(const std::string& address, uint32_t rank) {
  // Zeros would travel as nothing, and limits.in_flight_bytes would not hold them back.
  const std::vector<float> values(ModelLayout(model()).totalElements(), 1.0F);
  ClientOptions options;
  options.servers = {address};
  PSD_ASSIGN_OR_RETURN(auto client, Client::connect(options));
  PSD_RETURN_IF_ERROR(
      client->join({Rank{rank}, kTrainers}, model(), [&] { return std::span<const float>(values); }));
  std::vector<Pending<PushInfo>> pushes;
  for (uint64_t step = 1; step <= kPushes; step++) pushes.push_back(client->push(Step{step}, values, 1, {}));
  for (auto& push : pushes) PSD_RETURN_IF_ERROR(push.wait());
  return client->leave();
}

/// Readers, each of which requests a little and never reads further. Owned by one thread.
class IdleReaders {
 public:
  explicit IdleReaders(std::string address) : address_(std::move(address)) {}

  void addOne() {
    RawPeer& peer = *peers_.emplace_back(std::make_unique<RawPeer>(io_, address_));
    auto observed = peer.wait(peer.reading().observeRequest().send().dropPipeline());
    REQUIRE(observed.isObserving());
    readers_.push_back(observed.getObserving().getReader());
    auto pull = readers_.back().pullRequest();
    pull.setPull(1);
    pull.setCount(16);
    pulls_.push_back(pull.send().ignoreResult().eagerlyEvaluate([](kj::Exception&&) {}));
    io_.waitScope.poll();
  }

 private:
  const std::string address_;
  kj::AsyncIoContext io_ = kj::setupAsyncIo();
  std::vector<std::unique_ptr<RawPeer>> peers_;
  std::vector<schema::Reader::Client> readers_;
  std::vector<kj::Promise<void>> pulls_;
};

TEST_CASE("Memory: what peers make the daemon hold stays within its limits, whatever the disk does") {
  const TempDir folder;
  const std::string control = folder.file("control"), saved = folder.file("saved");
  std::ofstream(control, std::ios::binary) << std::string(64, '\0');
  setenv("FAULT_PRELOAD_CONTROL", control.c_str(), 1);
  setenv("FAULT_PRELOAD_FOLDER", saved.c_str(), 1);
  setenv("LD_PRELOAD", PSD_FAULT_PRELOAD, 1);
  DaemonProcess daemon(folder);
  // In flight, staged (each trainer's gradient twice), snapshots, waiting for the disk, outgoing.
  constexpr uint64_t kLimits[] = {16 * kMiB, 64 * kMiB, 16 * kMiB, 32 * kMiB, 16 * kMiB};
  daemon.start({"policy.type=locked", "shards=1", "threads=1", "membership.lease_ms=60000",
                R"(durability={"type":"log","path":")" + saved + R"(","every_seconds":0})",
                "limits.message_bytes=2097152", "limits.slice_bytes=1048576",
                "limits.in_flight_bytes=16777216", "limits.staged_bytes=67108864",
                "limits.snapshot_bytes=16777216", "limits.log_pending_bytes=33554432",
                "limits.outgoing_bytes=16777216", "limits.all_outgoing_bytes=16777216", "limits.ring_bytes=0",
                "limits.all_rings_bytes=0"});
  unsetenv("LD_PRELOAD");
  uint64_t most =
      daemon.status()["resident_bytes"].get<uint64_t>() + kModelBytes + kReaders * kOfConnection + kOfLoop;
  for (const uint64_t limit : kLimits) most += limit;

  std::vector<Status> ends(kTrainers);
  std::atomic<uint32_t> atWork{kTrainers};
  std::vector<std::thread> trainers;
  for (uint32_t rank = 0; rank < kTrainers; rank++) {
    trainers.emplace_back([&, rank] {
      ends[rank] = pushAll(daemon.address(), rank);
      atWork--;
    });
  }
  daemon.statusWhen([](const auto& status) { return status["counters"]["updates"] > 0; });
  slowDown(control, 1'000);
  IdleReaders readers(daemon.address());
  uint64_t highest = 0, mostPending = 0, mostCopied = 0;
  for (size_t count = 0; atWork > 0 || count < kReaders; count++) {
    if (count < kReaders) readers.addOne();
    if (count < kReaders && count % 20 != 0) continue;
    const auto status = daemon.status();
    highest = std::max(highest, status["resident_bytes"].get<uint64_t>());
    mostPending = std::max(mostPending, status["log_pending_bytes"].get<uint64_t>());
    mostCopied = std::max(mostCopied, status["snapshot_bytes"].get<uint64_t>());
  }
  for (std::thread& trainer : trainers) trainer.join();
  for (const Status& end : ends) PSD_REQUIRE_OK(end);
  INFO("at most " << highest / kMiB << " MiB were resident, of " << most / kMiB);
  if (!kSanitized) CHECK(highest < most);
  // Each budget was used up to its limit, to within a gradient or a shard's copy (8 MiB).
  CHECK(mostPending > 16 * kMiB);
  CHECK(mostCopied > 0);
  CHECK(daemon.status()["shards"][0]["version"] == kTrainers * kPushes);
}

/// Joins with the model; the session lasts as long as the client lives.
Result<std::unique_ptr<Client>> joinWith(const std::string& address, uint32_t rank, uint32_t worldSize,
                                         const ModelSpec& model) {
  const std::vector<float> values(ModelLayout(model).totalElements());
  ClientOptions options;
  options.servers = {address};
  PSD_ASSIGN_OR_RETURN(auto client, Client::connect(options));
  PSD_RETURN_IF_ERROR(
      client->join({Rank{rank}, worldSize}, model, [&] { return std::span<const float>(values); }));
  return client;
}

ModelSpec manyTables(uint32_t count) {
  ModelSpec model{"tables", {{"w", DType::f32, {4}}}, {}};
  for (uint32_t i = 0; i < count; i++) model.tables.push_back({"t" + std::to_string(i), 4, {}});
  return model;
}

TEST_CASE("Memory: tables without rows count in limits.table_bytes before a model is made of them") {
  const TempDir folder, other;
  DaemonProcess daemon(folder), roomy(other);
  constexpr uint64_t kMost = 384 * kMiB;
  const auto start = [](DaemonProcess& daemon, uint64_t most) {
    daemon.start(
        {"policy.type=locked", "row_shards=32", "threads=1", "limits.table_bytes=" + std::to_string(most)});
    return daemon.status()["resident_bytes"].get<uint64_t>();
  };
  uint64_t before = start(daemon, kMiB);
  const auto refused = joinWith(daemon.address(), 0, 1, manyTables(4096));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(refused.message().find("limits.table_bytes is 1048576: raise it, or lower row_shards") !=
        std::string::npos);
  if (!kSanitized) CHECK(daemon.status()["resident_bytes"].get<uint64_t>() < before + 32 * kMiB);
  before = start(roomy, kMost);
  const auto joined = joinWith(roomy.address(), 0, 1, manyTables(4096));
  PSD_REQUIRE_OK(joined);
  const uint64_t after = roomy.status()["resident_bytes"].get<uint64_t>();
  INFO("from " << before / kMiB << " to " << after / kMiB << " MiB");
  if (!kSanitized) CHECK(after < before + kMost + kOfLoop);
}

TEST_CASE("Memory: what trainers may come to at each shard counts in limits.sessions_bytes") {
  const TempDir folder;
  DaemonProcess daemon(folder);
  constexpr uint32_t kShards = 10'000, kSessions = 3;
  constexpr uint64_t kMost = uint64_t{kSessions} * kShards * 4096;
  daemon.start({"policy.type=locked", "optimizer.type=sgd", "shards=" + std::to_string(kShards), "threads=1",
                "limits.sessions_bytes=" + std::to_string(kMost)});
  const ModelSpec model{"shards", {{"w", DType::f32, {kShards * 16}}}};
  std::vector<std::unique_ptr<Client>> in;
  for (uint32_t rank = 0; rank < kSessions; rank++) {
    auto joined = joinWith(daemon.address(), rank, kSessions + 1, model);
    PSD_REQUIRE_OK(joined);
    in.push_back(*std::move(joined));
  }
  const auto refused = joinWith(daemon.address(), kSessions, kSessions + 1, model);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(refused.message().find("limits.sessions_bytes is " + std::to_string(kMost)) != std::string::npos);
  CHECK(daemon.status()["trainers"].size() == kSessions);
}

}  // namespace
}  // namespace psd::memory_test
