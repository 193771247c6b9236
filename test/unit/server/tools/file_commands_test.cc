#include "server/tools/file_commands.h"

#include <functional>

#include "common/safetensors/safetensors.h"
#include "server/tools/inspect_command.h"
#include "test/support/catch.h"
#include "test/support/memory_env.h"
#include "test/unit/server/checkpoint/checkpoint_store.h"

namespace psd::file_commands_test {
namespace {

using namespace testing;

const std::string kFolder = "/saved";

/// A disk on which a callback runs whenever a file is about to be opened or a folder listed. Owned by one
/// thread.
class BusyEnv final : public Env {
 public:
  BusyEnv(Env& disk, std::function<void(uint64_t look)> happen) : disk_(disk), happen_(std::move(happen)) {}

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    return disk_.create(path);
  }
  Result<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    happen_(looks_++);
    return disk_.open(path);
  }
  Status rename(const std::string& from, const std::string& to) override { return disk_.rename(from, to); }
  Status remove(const std::string& path) override { return disk_.remove(path); }
  Status truncate(const std::string& path, uint64_t bytes) override { return disk_.truncate(path, bytes); }
  Status createFolder(const std::string& folder) override { return disk_.createFolder(folder); }
  Status removeFolder(const std::string& folder) override { return disk_.removeFolder(folder); }
  Result<std::vector<std::string>> list(const std::string& folder) override {
    happen_(looks_++);
    return disk_.list(folder);
  }
  Result<bool> exists(const std::string& path) override { return disk_.exists(path); }
  Status syncFolder(const std::string& folder) override { return disk_.syncFolder(folder); }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override { return disk_.lock(path); }

  uint64_t looks() const { return looks_; }

 private:
  Env& disk_;
  const std::function<void(uint64_t)> happen_;
  uint64_t looks_ = 0;
};

/// The disk of a daemon that has made one checkpoint, and makes the next, which replaces it, on request.
struct WorkingDaemon {
  WorkingDaemon() { save(); }

  void save() {
    update(*store, 0, 1);
    PSD_REQUIRE_OK(saveStore(disk, kFolder, ++number, *store));
    PSD_REQUIRE_OK(pruneCheckpoints(disk, kFolder, 1));
  }

  MemoryEnv disk;
  std::unique_ptr<ParameterStore> store = makeStore(2, R"({"type": "sgd", "lr": 1})");
  uint64_t number = 0;
};

TEST_CASE("files are read while a daemon removes them") {
  const std::string command = GENERATE("export", "inspect", "replay");
  const uint64_t times = GENERATE(1u, 3u);  // in a row
  uint64_t removed = 0;
  for (uint64_t moment = 0;; moment++) {
    INFO(command << ", " << times << " from look " << moment << " on");
    WorkingDaemon daemon;
    BusyEnv env(daemon.disk, [&](uint64_t look) {
      if (look < moment || look >= moment + times) return;
      daemon.save();
      ++removed;
    });
    Status done;
    if (command == "export") done = exportModel(env, kFolder, "", "/model.safetensors");
    if (command == "inspect") done = inspect(env, kFolder, false);
    if (command == "replay") done = replay(env, kFolder, std::nullopt, "/model.safetensors");
    PSD_REQUIRE_OK(done);
    if (command != "inspect") PSD_REQUIRE_OK(SafetensorsReader::open(daemon.disk, "/model.safetensors"));
    if (moment >= env.looks()) break;
  }
  CHECK(removed > times);
}

TEST_CASE("damaged files are reported, and so are files that stay missing") {
  WorkingDaemon daemon;
  const std::string shard = checkpointPath(kFolder, 1) + "/shard-00001.safetensors";
  std::string bytes = daemon.disk.bytes(shard);
  bytes.back() ^= 1;
  daemon.disk.put(shard, bytes);
  CHECK(inspect(daemon.disk, kFolder, false).message().find(shard) != std::string::npos);
  CHECK(exportModel(daemon.disk, kFolder, "", "/model.safetensors").message() ==
        "there is no whole checkpoint in '/saved'");
  PSD_REQUIRE_OK(daemon.disk.remove(shard));
  CHECK(inspect(daemon.disk, kFolder, false).message().find(shard) != std::string::npos);
  CHECK(!replay(daemon.disk, kFolder, std::nullopt, "").ok());
}

TEST_CASE("a daemon that always wins the race is not waited for endlessly") {
  WorkingDaemon daemon;
  BusyEnv env(daemon.disk, [&](uint64_t) { daemon.save(); });
  CHECK(!exportModel(env, kFolder, "", "/model.safetensors").ok());
  CHECK(env.looks() < 1000);
}

}  // namespace
}  // namespace psd::file_commands_test
