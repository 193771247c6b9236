// Checkpoints of all daemons that form one of the whole model.

#include "server/checkpoint/whole.h"

#include <string>

#include "common/os/text_file.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::whole_test {
namespace {

using namespace testing;

const WholeCheckpoint kWhole{"2026-11-25T10:00:00Z", {{7, 100, 0xabcdef01}, {UINT64_MAX, 0, 0}}, {5, 6}};

TEST_CASE("a whole checkpoint is read as written, and a changed or missing byte is detected") {
  MemoryEnv env;
  PSD_REQUIRE_OK(writeWhole(env, "/data", kWhole));
  const auto found = readWhole(env, "/data");
  PSD_REQUIRE_OK(found);
  REQUIRE(found->has_value());
  CHECK(**found == kWhole);
  const std::string text = formatWhole(kWhole);
  for (size_t i = 0; i < text.size(); i++) {
    INFO("byte " << i);
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK_FALSE(parseWhole(changed, "it").ok());
    CHECK_FALSE(parseWhole(text.substr(0, i), "it").ok());
  }
  PSD_REQUIRE_OK(writeTextAtomically(env, "/data/" + std::string(kWholeName), "{}"));
  CHECK(readWhole(env, "/data").message().find("move the file away") != std::string::npos);
  WholeCheckpoint uneven = kWhole;
  uneven.before = {5};
  CHECK(parseWhole(formatWhole(uneven), "it").message() ==
        "'it' cannot be read: before: must be a number for each of the parts, or none");
  uneven = {};
  CHECK(parseWhole(formatWhole(uneven), "it").message().find("parts: must be 1 to 256") != std::string::npos);
}

/// A daemon that serves the second of two partitions, with checkpoints alone.
struct SecondOfTwo {
  SecondOfTwo() {
    DurabilityConfig config = logConfig();
    config.type = DurabilityConfig::Type::checkpoint;
    config.keep = 1;
    durability = std::move(Durability::open(env, config)).value();
    ModelSpec model = kSmallModel;
    model.partition = {1, 2};
    store = makeStore(2, kCounting, model);
    PSD_REQUIRE_OK(durability->begin(lockedSource(store)));
  }

  /// Takes a checkpoint; returns its reference.
  CheckpointRef take() {
    PSD_REQUIRE_OK(durability->checkpointNow());
    const auto newest = durability->newestPart();
    PSD_REQUIRE_OK(newest);
    CHECK(newest->partition == Partition{1, 2});
    CHECK_FALSE(newest->logged);
    return newest->ref;
  }
  std::vector<uint64_t> numbers() { return listCheckpoints(env, "/data", true).value(); }

  MemoryEnv env;
  std::unique_ptr<Durability> durability;
  std::shared_ptr<ParameterStore> store;
};

TEST_CASE("a part of the newest whole checkpoint stays, and of the previous one") {
  SecondOfTwo daemon;
  CHECK(daemon.durability->newestPart().error().code == ErrorCode::notReady);
  const CheckpointRef first = daemon.take(), other{3, 0, 0};
  PSD_REQUIRE_OK(daemon.durability->recordWhole({"then", {other, first}, {}}));
  for (int i = 0; i < 3; i++) daemon.take();
  CHECK(daemon.numbers() == std::vector<uint64_t>{1, 4});
  const CheckpointRef second = daemon.take();
  PSD_REQUIRE_OK(daemon.durability->recordWhole({"then", {other, second}, {3, first.number}}));
  for (int i = 0; i < 2; i++) daemon.take();
  CHECK(daemon.numbers() == std::vector<uint64_t>{1, 5, 7});
  const CheckpointRef third = daemon.take();
  PSD_REQUIRE_OK(daemon.durability->recordWhole({"then", {other, third}, {4, second.number}}));
  daemon.take();
  CHECK(daemon.numbers() == std::vector<uint64_t>{5, 8, 9});
  CHECK(daemon.durability->newestPart()->whole->parts[1] == third);
}

TEST_CASE("a folder that is not part of a whole checkpoint is not named as one") {
  SecondOfTwo daemon;
  CHECK(daemon.durability->recordWhole({"then", {{1, 0, 0}, {1, 0, 0}}, {}}).message() ==
        "there is no checkpoint yet");
  const CheckpointRef first = daemon.take();
  daemon.take();
  CHECK(daemon.durability->recordWhole({"then", {first, first}, {}}).message() ==
        "checkpoint 1 no longer exists; a larger durability.keep keeps it longer");
  CheckpointRef other = daemon.take();
  other.crc++;
  CHECK(daemon.durability->recordWhole({"then", {other, other}, {}}).message() ==
        "checkpoint 3 is not the one that is named");
  CHECK(daemon.durability->recordWhole({"then", {other}, {}}).message() ==
        "the checkpoint of the whole model has 1 parts, this daemon is one of 2");
  CHECK_FALSE(daemon.durability->newestPart()->whole.has_value());
}

TEST_CASE("a daemon with a log takes no part in whole checkpoints") {
  MemoryEnv env;
  Life daemon(env);
  REQUIRE(daemon.begin());
  const auto newest = daemon.durability->newestPart();
  PSD_REQUIRE_OK(newest);
  CHECK(newest->logged);
  CHECK(daemon.durability->recordWhole({"then", {newest->ref}, {}}).message().find("durability.type log") !=
        std::string::npos);
}

}  // namespace
}  // namespace psd::whole_test
