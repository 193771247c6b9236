// A real daemon that is killed and started again. SGD with a learning rate of 1 and gradients of −1: the
// model counts the pushes that are in it.

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>
#include <poll.h>

#include "common/os/socket.h"
#include "common/safetensors/safetensors.h"
#include "common/types/model_layout.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "test/integration/daemon_process.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/temp_dir.h"
#include "trainer/client/api/client.h"

namespace psd::durability_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::DaemonProcess;
using testing::TempDir;

const ModelSpec kModel{"counting", {{"a", DType::f32, {100, 70}}, {"b", DType::f32, {33}}}};

constexpr uint32_t kShards = 3;

std::unique_ptr<Client> joined(const std::string& address, std::vector<float>& values,
                               const std::string& codec = "none") {
  ClientOptions options;
  options.servers = {address};
  options.codec = codec;
  auto client = Client::connect(options);
  PSD_REQUIRE_OK(client);
  PSD_REQUIRE_OK((*client)->join({Rank{0}, 1}, kModel, [&] { return std::span<const float>(values); }));
  return std::move(*client);
}

/// The value that every element of the model has.
float pulled(Client& client) {
  const ModelLayout layout(kModel);
  std::vector<float> values(layout.totalElements());
  PSD_REQUIRE_OK(client.pull(values).wait());
  for (const TensorPlace& place : layout.places()) {
    for (uint64_t i = place.begin; i < place.begin + place.count; i++) REQUIRE(values[i] == values[0]);
  }
  return values[0];
}

std::vector<float> gradientOfOnes() {
  const ModelLayout layout(kModel);
  std::vector<float> gradient(layout.totalElements());
  for (const TensorPlace& place : layout.places()) {
    std::fill_n(gradient.begin() + static_cast<ptrdiff_t>(place.begin), place.count, -1.f);
  }
  return gradient;
}

/// Once it returns ok, the push was answered.
Status pushOnce(Client& client, Step step) {
  return client.push(step, gradientOfOnes(), 1, std::vector<Version>(kShards)).wait().status();
}

std::vector<std::string> settingsFor(const std::string& durability) {
  return {"policy.type=locked", "optimizer.type=sgd", "optimizer.lr=1",
          "shards=3",           "threads=2",          "durability=" + durability};
}

TEST_CASE("with a log, every push that was answered outlives kill -9, once") {
  const std::string codec = GENERATE("none", "fp16", "topk:fraction=1");  // codecs that lose nothing of a −1
  INFO(codec);
  TempDir folder;
  testing::Random random(20261121);
  DaemonProcess daemon(folder);
  const auto settings = settingsFor(R"({"type": "log", "every_updates": 7, "keep": 2, "path": ")" +
                                    folder.file("saved") + R"("})");
  std::vector<float> zeros(gradientOfOnes().size(), 0.f);
  float answered = 0;
  uint64_t step = 0;
  for (int life = 0; life < 5; life++) {
    daemon.start(settings);
    auto client = joined(daemon.address(), zeros, codec);
    const float found = pulled(*client);
    INFO("life " << life << ": " << answered << " answered, " << found << " found");
    REQUIRE(found == answered);
    for (uint64_t pushes = random.between(1, 25); pushes > 0; pushes--) {
      PSD_REQUIRE_OK(pushOnce(*client, Step{++step}));
      answered++;
    }
    CHECK(daemon.kill(SIGKILL) == -1);
  }
}

TEST_CASE("with checkpoints alone a crash loses what came after the last one, an orderly end nothing") {
  TempDir folder;
  DaemonProcess daemon(folder);
  const auto settings =
      settingsFor(R"({"type": "checkpoint", "every_seconds": 0, "every_updates": 10, "path": ")" +
                  folder.file("saved") + R"("})");
  std::vector<float> zeros(gradientOfOnes().size(), 0.f);
  daemon.start(settings);
  auto client = joined(daemon.address(), zeros);
  for (uint64_t step = 1; step <= 13; step++) PSD_REQUIRE_OK(pushOnce(*client, Step{step}));
  client = nullptr;
  const Json saved =
      daemon.until([](const Json& durability) { return durability["checkpoints"] != 0; })["last_checkpoint"];
  REQUIRE(saved.is_object());
  daemon.kill(SIGKILL);

  daemon.start(settings);
  client = joined(daemon.address(), zeros);
  // Each shard was saved between two updates, the first ones perhaps earlier than the last.
  const auto version = daemon.status()["shards"][0]["version"].get<uint64_t>();
  CHECK(version >= 10);
  PSD_REQUIRE_OK(pushOnce(*client, Step{14}));
  PSD_REQUIRE_OK(client->leave());
  client = nullptr;
  CHECK(daemon.kill(SIGTERM) == 0);

  daemon.start(settings);
  CHECK(daemon.status()["shards"][0]["version"] == version + 1);
  CHECK(daemon.errors().find("resuming from checkpoint") != std::string::npos);
}

TEST_CASE("a daemon under sync that resumes from a checkpoint counts its rounds from there") {
  TempDir folder;
  DaemonProcess daemon(folder);
  auto settings = settingsFor(R"({"type": "checkpoint", "path": ")" + folder.file("saved") + R"("})");
  settings[0] = "policy.type=sync";
  std::vector<float> zeros(gradientOfOnes().size(), 0.f);
  const auto push = [&](Client& client, uint64_t step, uint64_t basis) {
    auto answer =
        client.push(Step{step}, gradientOfOnes(), 1, std::vector<Version>(kShards, Version{basis})).wait();
    PSD_REQUIRE_OK(answer);
    return answer->outcome;
  };
  daemon.start(settings);
  auto client = joined(daemon.address(), zeros);
  for (uint64_t step = 1; step <= 5; step++) REQUIRE(push(*client, step, step - 1) == PushOutcome::applied);
  PSD_REQUIRE_OK(client->leave());
  client = nullptr;
  CHECK(daemon.kill(SIGTERM) == 0);

  daemon.start(settings);
  client = joined(daemon.address(), zeros);
  CHECK(push(*client, 6, 5) == PushOutcome::applied);
  CHECK(push(*client, 7, 5) == PushOutcome::late);
  CHECK(push(*client, 8, 6) == PushOutcome::applied);
  CHECK(pulled(*client) == 7.f);
}

TEST_CASE("a folder that vanishes costs no training, is reported, and is used again once it exists") {
  TempDir folder;
  DaemonProcess daemon(folder);
  const std::string saved = folder.file("saved");
  daemon.start(settingsFor(R"({"type": "checkpoint", "every_updates": 1, "path": ")" + saved + R"("})"));
  std::vector<float> zeros(gradientOfOnes().size(), 0.f);
  auto client = joined(daemon.address(), zeros);
  std::filesystem::remove_all(saved);
  testing::writeFile(saved, "a file stands in its place");
  PSD_REQUIRE_OK(pushOnce(*client, Step{1}));
  daemon.until([](const Json& saving) { return saving["checkpoint_failures"] >= 1; });
  CHECK(daemon.errors().find("no checkpoint: durability.path: '" + saved) != std::string::npos);
  PSD_REQUIRE_OK(pushOnce(*client, Step{2}));
  std::filesystem::remove(saved);
  daemon.until([](const Json& saving) { return saving["error"] == ""; });
  CHECK(pulled(*client) == 2.f);
}

TEST_CASE("with a log a removed folder is created and used again, with all pushes") {
  const bool pushesMeanwhile = GENERATE(true, false);
  TempDir folder;
  DaemonProcess daemon(folder);
  const std::string saved = folder.file("saved");
  const auto settings = settingsFor(R"({"type": "log", "path": ")" + saved + R"("})");
  daemon.start(settings);
  std::vector<float> zeros(gradientOfOnes().size(), 0.f);
  auto client = joined(daemon.address(), zeros);
  PSD_REQUIRE_OK(pushOnce(*client, Step{1}));
  std::filesystem::remove_all(saved);
  if (pushesMeanwhile) PSD_REQUIRE_OK(pushOnce(*client, Step{2}));
  daemon.until([](const Json& saving) {
    return saving["log"]["failures"] >= 1 && saving["log"]["error"] == "" && saving["error"] == "";
  });
  CHECK(daemon.errors().find("the log is broken: '" + saved) != std::string::npos);
  PSD_REQUIRE_OK(pushOnce(*client, Step{3}));
  const auto lock = makePosixEnv()->lock(saved + "/lock");
  REQUIRE_FALSE(lock.ok());
  CHECK(lock.error().code == ErrorCode::unavailable);
  daemon.kill(SIGKILL);
  daemon.start(settings);
  client = joined(daemon.address(), zeros);
  CHECK(pulled(*client) == (pushesMeanwhile ? 3.f : 2.f));
}

TEST_CASE("on a full disk training continues and old checkpoints stay, until there is space again") {
  const std::string type = GENERATE("checkpoint", "log");
  TempDir folder;
  DaemonProcess daemon(folder);
  const std::string saved = folder.file("saved");
  auto settings =
      settingsFor(R"({"type": ")" + type + R"(", "every_updates": 1, "path": ")" + saved + R"("})");
  settings.push_back("shards=1");
  daemon.start(settings);
  std::vector<float> zeros(gradientOfOnes().size(), 0.f);
  auto client = joined(daemon.address(), zeros);
  const auto push = [&](uint64_t step) {
    PSD_REQUIRE_OK(client->push(Step{step}, gradientOfOnes(), 1, std::vector<Version>(1)).wait().status());
  };
  push(1);
  daemon.until([](const Json& saving) {
    return saving["last_checkpoint"].is_object() && saving["last_checkpoint"]["updates"] == 1;
  });

  daemon.setFileBytesMax(8192);  // less than a shard
  push(2);
  push(3);
  const Json full = daemon.until([](const Json& saving) { return saving["checkpoint_failures"] >= 1; });
  CHECK(full["error"].get<std::string>().find("File too large") != std::string::npos);
  CHECK(full["last_checkpoint"]["updates"] == 1);
  if (type == "log") {
    CHECK(full["log"]["error"].get<std::string>().find("File too large") != std::string::npos);
  }
  CHECK(daemon.errors().find("training continues") != std::string::npos);
  CHECK(pulled(*client) == 3.f);
  const auto env = makePosixEnv();
  CHECK(newestCheckpoint(*env, saved)->checkpoint->manifest.shards[0].version == Version{1});

  daemon.setFileBytesMax(RLIM_INFINITY);
  const Json mended = daemon.until(
      [](const Json& saving) { return saving["error"] == "" && saving["last_checkpoint"]["updates"] == 3; });
  if (type == "log") {
    CHECK(mended["log"]["error"] == "");
    push(4);
  }
  daemon.kill(SIGKILL);
  daemon.start(settings);
  client = joined(daemon.address(), zeros);
  CHECK(pulled(*client) == (type == "log" ? 4.f : 3.f));
}

TEST_CASE("idle connections leave the log and checkpoints the file descriptors that they need") {
  TempDir folder;
  DaemonProcess daemon(folder);
  const std::string saved = folder.file("saved");
  const auto settings = settingsFor(R"({"type": "log", "every_updates": 5, "path": ")" + saved + R"("})");
  daemon.setDescriptorsMax(256);  // a CUDA driver takes some dozens
  daemon.start(settings);
  std::vector<float> zeros(gradientOfOnes().size(), 0.f);
  auto client = joined(daemon.address(), zeros);
  std::vector<OwnFd> idle;
  for (int i = 0; i < 300; i++) {
    auto peer = connectTo(parseAddress(daemon.address()).value(), std::chrono::minutes(1));
    PSD_REQUIRE_OK(peer);
    idle.push_back(*std::move(peer));
  }
  pollfd last{idle.back().get(), POLLIN, 0};
  CHECK(poll(&last, 1, 60'000) == 1);  // it exceeds the limit, and is closed
  for (uint64_t step = 1; step <= 40; step++) PSD_REQUIRE_OK(pushOnce(*client, Step{step}));
  const auto env = makePosixEnv();
  const auto savedUpdates = [&] {
    const auto newest = newestCheckpoint(*env, saved);
    PSD_REQUIRE_OK(newest);
    return newest->checkpoint ? newest->checkpoint->manifest.shards[0].version.value : 0;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (savedUpdates() < 5 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(savedUpdates() >= 5);
  CHECK(daemon.errors().find("limits.connections asks for 4096 ") != std::string::npos);
  CHECK(daemon.errors().find("broken") == std::string::npos);
  CHECK(daemon.errors().find("Too many open files") == std::string::npos);
  daemon.kill(SIGKILL);
  idle.clear();
  daemon.start(settings);
  client = joined(daemon.address(), zeros);
  CHECK(pulled(*client) == 40.f);
}

/// The value of each tensor in the model that a client reads; all elements of a tensor are equal.
std::vector<float> pulledTensors(Client& client, const ModelSpec& model) {
  const ModelLayout layout(model);
  std::vector<float> values(layout.totalElements()), tensors;
  PSD_REQUIRE_OK(client.pull(values).wait());
  for (const TensorPlace& place : layout.places()) {
    for (uint64_t i = place.begin; i < place.begin + place.count; i++)
      REQUIRE(values[i] == values[place.begin]);
    tensors.push_back(values[place.begin]);
  }
  return tensors;
}

TEST_CASE("a model from a file waits for the first trainer's order of tensors, across restarts too") {
  const std::string type = GENERATE("checkpoint", "log");
  TempDir folder;
  const auto env = makePosixEnv();
  const ModelSpec file{"", {kModel.tensors[1], kModel.tensors[0]}};  // in another order than the trainer's
  PSD_REQUIRE_OK(writeFileAtomically(*env, folder.file("model.safetensors"), [&](WritableFile& out) {
    return writeSafetensors(
        out, file, {},
        [&](size_t tensor, const std::function<Status(std::span<const float>)>& sink) -> Status {
          return sink(std::vector<float>(file.tensors[tensor].elementCount(), tensor == 0 ? 70.f : 50.f));
        });
  }));
  DaemonProcess daemon(folder);
  auto settings = settingsFor(R"({"type": ")" + type + R"(", "every_updates": 1, "path": ")" +
                              folder.file("saved") + R"("})");
  settings.push_back("model.file=" + folder.file("model.safetensors"));
  for (int life = 0; life < 2; life++) {  // no trainer has joined yet
    daemon.start(settings);
    daemon.kill(SIGKILL);
  }
  daemon.start(settings);
  std::vector<float> unused(gradientOfOnes().size(), 0.f);
  auto client = joined(daemon.address(), unused);
  CHECK(pulledTensors(*client, kModel) == std::vector<float>{50, 70});
  PSD_REQUIRE_OK(pushOnce(*client, Step{1}));
  daemon.until([](const Json& saving) { return saving["checkpoints"] >= 1; });
  if (type == "checkpoint") {
    PSD_REQUIRE_OK(client->leave());
    CHECK(daemon.kill(SIGTERM) == 0);
  } else {
    daemon.kill(SIGKILL);
  }
  daemon.start(settings);
  client = joined(daemon.address(), unused);
  CHECK(pulledTensors(*client, kModel) == std::vector<float>{51, 71});
}

}  // namespace
}  // namespace psd::durability_test
