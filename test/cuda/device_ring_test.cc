// Trainers whose values are on a CUDA device, and a daemon in another process with its shards on one:
// transfers by memory of the daemon's devices give the same results as messages.

#include <deque>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "test/cuda/device_array.h"
#include "test/cuda/device_or_skip.h"
#include "test/integration/daemon_process.h"
#include "test/support/arena_values.h"
#include "test/support/random.h"
#include "trainer/client/api/client.h"

namespace psd::device_ring_test {
namespace {

using namespace testing;
using Catch::Matchers::Contains;

const ModelSpec kModel{"net", {{"w", DType::f32, {5000}}, {"b", DType::f32, {77}}}};
constexpr uint64_t kChunkBytes = 4096;
const std::string kSmallSlices = R"(limits={"slice_bytes":4096})";

std::vector<float> filled(float value) { return testing::everyParameter(kModel, value); }

/// Normally distributed values; zeros in the padding.
std::vector<float> drawn(Random& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values = filled(1);
  for (float& value : values) value = value == 0 ? 0 : normal(random.engine());
  return values;
}

struct Joined {
  std::unique_ptr<Client> client;
  JoinInfo info;
};

/// A trainer with its values on device 0, alone by default.
Joined join(const DaemonProcess& daemon, const std::function<std::span<const float>()>& initialValues,
            ClientOptions options = {}) {
  options.servers = {daemon.address()};
  options.chunkBytes = options.deviceChunkBytes = kChunkBytes;
  options.cudaDevice = 0;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  auto info = (*client)->join({Rank{0}, 1}, kModel, initialValues);
  PSD_REQUIRE_OK(info);
  return {std::move(*client), *info};
}

/// A daemon on the test's device.
struct OnDevice {
  explicit OnDevice(const std::vector<std::string>& settings, const std::string& configFile = {}) {
    deviceOrSkip();
    setenv("PSD_TEST_DEVICE", "cuda:0", 1);
    daemon.start(settings, configFile);
  }
  TempDir folder;
  DaemonProcess daemon{folder};
};

/// The model after some steps, and the report of the last pull.
struct Trained {
  std::vector<float> values;
  std::vector<Version> versions;
};

Trained train(const std::vector<std::string>& settings, bool onDevice) {
  OnDevice on(settings);
  Random random(7);
  const std::vector<float> initial = drawn(random);
  ClientOptions options;
  if (!onDevice) options.transport = Transport::rpc;
  Joined trainer = join(
      on.daemon, [&] { return std::span<const float>(initial); }, options);
  CHECK(trainer.info.pullTransport == (onDevice ? "cuda" : "rpc"));
  CHECK(trainer.info.pushTransport == (onDevice ? "cuda" : "rpc"));
  REQUIRE(trainer.client->useDeviceMemory() == onDevice);
  Trained trained{initial, {}};
  const DeviceArray values(initial), gradient(initial);
  for (uint64_t step = 1; step <= 4; step++) {
    auto pulled = trainer.client->pull(onDevice ? values.span() : std::span(trained.values)).wait();
    PSD_REQUIRE_OK(pulled);
    CHECK(pulled->bytes == initial.size() * sizeof(float));
    const std::vector<float> drawnNow = drawn(random);
    gradient.set(drawnNow);
    const auto answer = trainer.client
                            ->push(Step{step}, onDevice ? gradient.span() : std::span<const float>(drawnNow),
                                   1, pulled->versions)
                            .wait();
    PSD_REQUIRE_OK(answer);
    CHECK(answer->outcome == PushOutcome::applied);
    CHECK(answer->bytes == initial.size() * sizeof(float));
  }
  auto pulled = trainer.client->pull(onDevice ? values.span() : std::span(trained.values)).wait();
  PSD_REQUIRE_OK(pulled);
  trained.versions = pulled->versions;
  if (onDevice) trained.values = values.values();
  PSD_REQUIRE_OK(trainer.client->leave());
  return trained;
}

TEST_CASE("Device ring: values are those that go in messages, whatever the policy") {
  deviceOrSkip();
  std::vector<std::string> lists = {R"(devices=["cuda:0"])"};
  if (*cudaDeviceCount() > 1) lists.push_back(R"(devices=["cuda:0","cuda:1"])");
  for (const std::string policy : {"hogwild", "locked", "sync", "bounded_staleness"}) {
    for (const std::string& devices : lists) {
      INFO(policy << ", " << devices);
      const std::vector<std::string> settings = {"policy.type=" + policy, "shards=3", devices, kSmallSlices,
                                                 R"(optimizer={"type":"adam","lr":0.1})"};
      const Trained through = train(settings, true), messages = train(settings, false);
      CHECK(through.values == messages.values);
      CHECK(through.versions == messages.versions);
    }
  }
}

TEST_CASE("Device ring: there is none over TCP, with a codec, or from the CPU, and the client says so") {
  deviceOrSkip();
  const std::vector<float> zeros = filled(0);
  const auto noDevice = [&](const std::vector<std::string>& settings, const ClientOptions& options) {
    OnDevice on(settings);
    Joined trainer = join(
        on.daemon, [&] { return std::span<const float>(zeros); }, options);
    CHECK(trainer.info.pullTransport != "cuda");
    CHECK(trainer.info.pushTransport != "cuda");
    CHECK_FALSE(trainer.client->useDeviceMemory());
    std::vector<float> values(zeros.size());
    PSD_REQUIRE_OK(trainer.client->push(Step{1}, filled(-1), 1, {}).wait());
    PSD_REQUIRE_OK(trainer.client->pull(values).wait());
    CHECK(values != zeros);
  };
  noDevice({R"(devices=["cpu"])"}, {});
  noDevice({R"(codecs={"push":{"default":"fp16"}})"}, {});
  noDevice({R"(codecs={"pull":{"default":"fp16"}})"}, {});
  noDevice({R"(limits={"ring_bytes":64})"}, {});
  ClientOptions messages;
  messages.transport = Transport::rpc;
  noDevice({}, messages);
}

TEST_CASE("Device ring: a client that must have shared memory has it on the device") {
  OnDevice on({});
  const std::vector<float> zeros = filled(0);
  ClientOptions options;
  options.transport = Transport::shm;
  const Joined trainer = join(
      on.daemon, [&] { return std::span<const float>(zeros); }, options);
  CHECK(trainer.info.pullTransport == "cuda");
}

TEST_CASE("Device ring: slices are as large as the daemon takes, or as the trainer asks for") {
  constexpr uint64_t kTaken = 2 << 20, kPlaces = 2 * 4;  // of a window, in both directions
  OnDevice on({"shards=1", "limits.slice_bytes=" + std::to_string(kTaken)});
  const ModelSpec wide{"wide", {{"w", DType::f32, {3 << 20}}}};
  const std::vector<float> zeros = testing::everyParameter(wide, 0);
  for (const uint64_t asked : {uint64_t{0}, kTaken / 2}) {
    ClientOptions options;
    options.servers = {on.daemon.address()};
    options.cudaDevice = 0;
    if (asked != 0) options.deviceChunkBytes = asked;
    auto client = Client::connect(options);
    PSD_REQUIRE_OK(client);
    PSD_REQUIRE_OK((*client)->join({Rank{0}, 1}, wide, [&] { return std::span<const float>(zeros); }));
    REQUIRE((*client)->useDeviceMemory());
    CHECK(on.daemon.status()["ring_bytes"] == kPlaces * (asked != 0 ? asked : kTaken));
    const DeviceArray ones(testing::everyParameter(wide, -1)), values(zeros);
    PSD_REQUIRE_OK((*client)->push(Step{1}, ones.span(), 1, {}).wait());
    PSD_REQUIRE_OK((*client)->pull(values.span()).wait());
    CHECK(values.values() != zeros);
    PSD_REQUIRE_OK((*client)->leave());
    *client = nullptr;
    on.daemon.statusWhen([](const auto& status) { return status["ring_bytes"] == 0; });
  }
}

TEST_CASE("Device ring: a slice takes a quarter of the ring at most") {
  OnDevice on({"shards=1", R"(limits={"slice_bytes":2097152,"ring_bytes":6291456})"});
  const ModelSpec wide{"wide", {{"w", DType::f32, {3 << 20}}}};
  const std::vector<float> zeros = testing::everyParameter(wide, 0);
  ClientOptions options;
  options.servers = {on.daemon.address()};
  options.cudaDevice = 0;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  PSD_REQUIRE_OK((*client)->join({Rank{0}, 1}, wide, [&] { return std::span<const float>(zeros); }));
  REQUIRE((*client)->useDeviceMemory());
  CHECK(on.daemon.status()["ring_bytes"] == 6 << 20);  // two places of 1.5 MiB in each direction
}

TEST_CASE("Device ring: slices keep their size when the session continues without a device") {
  constexpr uint64_t kModelBytes = 12 << 20, kSliceBytes = 4 << 20;
  const std::vector<std::string> settings = {"shards=1", "policy.type=locked"};
  OnDevice on(settings);
  const ModelSpec wide{"wide", {{"w", DType::f32, {kModelBytes / sizeof(float)}}}};
  const std::vector<float> zeros = testing::everyParameter(wide, 0);
  ClientOptions options;
  options.servers = {on.daemon.address()};
  options.cudaDevice = 0;
  options.retryTimeout = std::chrono::minutes(1);
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  PSD_REQUIRE_OK((*client)->join({Rank{0}, 1}, wide, [&] { return std::span<const float>(zeros); }));
  REQUIRE((*client)->useDeviceMemory());
  on.daemon.kill(SIGKILL);
  setenv("PSD_TEST_DEVICE", "cpu", 1);
  on.daemon.start(settings);
  const DeviceArray values(zeros);
  PSD_REQUIRE_OK((*client)->pull(values.span()).wait());
  CHECK(on.daemon.status()["counters"]["pull_slices"] == kModelBytes / kSliceBytes);
  PSD_REQUIRE_OK((*client)->leave());
}

TEST_CASE("Device ring: what is not finite is refused, named, and nothing of its slice is in the model") {
  for (const std::string policy : {"hogwild", "locked"}) {
    OnDevice on({"policy.type=" + policy, "shards=1", kSmallSlices, R"(optimizer={"type":"sgd","lr":1})"});
    const std::vector<float> zeros = filled(0);
    Joined trainer = join(on.daemon, [&] { return std::span<const float>(zeros); });
    REQUIRE(trainer.client->useDeviceMemory());
    std::vector<float> gradient = filled(-1);
    gradient[2000] = std::numeric_limits<float>::quiet_NaN();
    const DeviceArray bad(gradient), good(filled(-1)), values(zeros);
    const auto refused = trainer.client->push(Step{1}, bad.span(), 1, {}).wait();
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::nonFinite);
    // The host check finds the element; the check on a device names only the slice.
    const std::string& tensor = kModel.tensors[0].name;
    CHECK_THAT(refused.message(), Contains(tensor + " holds nan at element 2000 of ") ||
                                      Contains("NaN or infinity in " + tensor + ", elements 1024 to "));
    PSD_REQUIRE_OK(trainer.client->push(Step{2}, good.span(), 1, {}).wait());
    PSD_REQUIRE_OK(trainer.client->pull(values.span()).wait());
    CHECK(values.values()[2000] == 1.f);
    CHECK(on.daemon.status()["counters"]["refused_non_finite"] == 1);
  }
}

TEST_CASE("Device ring: pushes under way while the policy changes are all in the model, once") {
  const TempDir folder;
  const std::string file = folder.file("psd.json");
  const auto configure = [&](const std::string& policy) {
    std::ofstream(file) << R"({"policy":{"type":")" << policy << R"("}})";
  };
  configure("hogwild");
  OnDevice on({"threads=1", "shards=2", kSmallSlices, R"(optimizer={"type":"sgd","lr":1})"}, file);
  constexpr uint64_t kPushes = 400, kInFlight = 4, kBetweenReloads = 40;
  const std::vector<float> zeros = filled(0);
  Joined trainer = join(on.daemon, [&] { return std::span<const float>(zeros); });
  REQUIRE(trainer.client->useDeviceMemory());
  const DeviceArray ones(filled(-1)), values(zeros);
  std::deque<Pending<PushInfo>> open;
  for (uint64_t step = 1; step <= kPushes; step++) {
    if (step % kBetweenReloads == 0) {
      configure(step / kBetweenReloads % 2 == 0 ? "hogwild" : "locked");
      on.daemon.reload();
    }
    open.push_back(trainer.client->push(Step{step}, ones.span(), 1, {}));
    if (open.size() < kInFlight) continue;
    PSD_REQUIRE_OK(open.front().wait());
    open.pop_front();
  }
  for (auto& push : open) PSD_REQUIRE_OK(push.wait());
  PSD_REQUIRE_OK(trainer.client->pull(values.span()).wait());
  CHECK(values.values() == filled(kPushes));
}

TEST_CASE("Device ring: a trainer continues through host memory when its daemon restarts on the CPU") {
  const std::vector<std::string> settings = {R"(optimizer={"type":"sgd","lr":1})", kSmallSlices};
  OnDevice on(settings);
  std::vector<float> newest = filled(0);
  const DeviceArray ones(filled(-1)), values(newest);
  ClientOptions options;
  options.retryTimeout = std::chrono::minutes(1);
  Joined trainer = join(
      on.daemon,
      [&] {
        newest = values.values();
        return std::span<const float>(newest);
      },
      options);
  REQUIRE(trainer.client->useDeviceMemory());
  PSD_REQUIRE_OK(trainer.client->push(Step{1}, ones.span(), 1, {}).wait());
  PSD_REQUIRE_OK(trainer.client->pull(values.span()).wait());
  CHECK(values.values() == filled(1));
  for (const std::string device : {"cpu", "cuda:0", "cpu"}) {
    on.daemon.kill(SIGKILL);
    const float before = values.values()[0];
    setenv("PSD_TEST_DEVICE", device.c_str(), 1);
    on.daemon.start(settings);
    PSD_REQUIRE_OK(trainer.client->push(Step{static_cast<uint64_t>(before) + 1}, ones.span(), 1, {}).wait());
    PSD_REQUIRE_OK(trainer.client->pull(values.span()).wait());
    CHECK(values.values() == filled(before + 1));
  }
  PSD_REQUIRE_OK(trainer.client->leave());
}

TEST_CASE("Device ring: what a trainer had is the daemon's again when it is gone") {
  OnDevice on({});
  const std::vector<float> zeros = filled(0);
  for (int life = 0; life < 3; life++) {
    Joined trainer = join(on.daemon, [&] { return std::span<const float>(zeros); });
    CHECK(on.daemon.status()["ring_bytes"] > 0);
    PSD_REQUIRE_OK(trainer.client->leave());
    trainer.client = nullptr;
    on.daemon.statusWhen([](const auto& status) { return status["ring_bytes"] == 0; });
  }
}

}  // namespace
}  // namespace psd::device_ring_test
