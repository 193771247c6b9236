#include "server/replica/follower.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "server/checkpoint/log_format.h"
#include "server/checkpoint/store_at_rest.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"
#include "test/support/holds_soon.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::follower_test {
namespace {

/// A record of slightly more than `bytes` bytes.
std::vector<std::byte> record(uint64_t number, uint64_t bytes) {
  std::vector<std::byte> out;
  Departed departed;
  for (uint32_t rank = 0; rank < bytes / sizeof rank; rank++) departed.ranks.insert(Rank{rank});
  appendRecord(out, number, departed);
  sealRecords(out, 0);
  return out;
}

Result<CopyPlace> noStore(Env&, const Checkpoint&) {
  return Error{ErrorCode::internal, "this test has no model"};
}

/// The records of the first `parts` shards of a round, numbered from `first` on.
std::vector<std::byte> roundRecords(ParameterStore& store, uint64_t round, uint64_t first, size_t parts) {
  std::vector<std::byte> out;
  for (size_t shard = 0; shard < parts; shard++) {
    const std::vector<float> gradient = testing::countingGradient(store, shard);
    const UpdateSource source{Rank{3}, 32, 11, Step{round}, Version{round}, 0};
    const UpdatePart part = shard + 1 < store.shardCount() ? UpdatePart::continues : UpdatePart::last;
    appendRecord(out, first + shard, ShardId{static_cast<uint32_t>(shard)},
                 {store.shard(shard).scalars(round), gradient, {&source, 1}, part});
  }
  sealRecords(out, 0);
  return out;
}

/// The checkpoint in "/saved", whole.
void giveImage(Follower& follower, testing::MemoryEnv& disk, testing::TestLoop& loop) {
  for (const auto& [path, text] : disk.files()) {
    const auto bytes = std::as_bytes(std::span(text));
    PSD_REQUIRE_OK(follower.image({path, "", {bytes.begin(), bytes.end()}}));
  }
  PSD_REQUIRE_OK(loop.wait(follower.imageDone(checkpointPath("/saved", 1))));
}

TEST_CASE("a record is accepted whatever the limit, and the next one waits") {
  testing::TestLoop loop;
  Follower follower(ReplicationConfig{.catchUpBytes = 1024}, noStore);
  auto waits = follower.records(record(5, 4096));
  const auto progress = follower.progress();
  PSD_REQUIRE_OK(progress);
  CHECK(progress->held == 6);
  CHECK(follower.lagBytes() > 4096);
  CHECK_FALSE(loop.resolved(waits));
}

TEST_CASE("a follower keeps reporting the record or image that it could not apply") {
  testing::TestLoop loop;
  Follower follower(ReplicationConfig{}, noStore);
  SECTION("bytes that are not a record") {
    const auto taken = loop.wait(follower.records(std::vector<std::byte>(64, std::byte{255})));
    REQUIRE_FALSE(taken.ok());
    CHECK(taken.message().find("are not a log record") != std::string::npos);
  }
  SECTION("a record that claims more than any daemon accepts") {
    std::vector<std::byte> bytes = record(1, 64);
    const uint64_t claimed = 8ull << 30;
    std::memcpy(bytes.data() + 8, &claimed, sizeof claimed);
    const auto taken = loop.wait(follower.records(bytes));
    REQUIRE_FALSE(taken.ok());
    CHECK(taken.error().code == ErrorCode::overloaded);
    CHECK(taken.message().find("replication.catch_up_bytes must be at least that") != std::string::npos);
  }
  SECTION("no memory for the model") { CHECK(follower.outOfMemory().error().code == ErrorCode::overloaded); }
  const auto progress = follower.progress();
  REQUIRE_FALSE(progress.ok());
  CHECK(loop.wait(follower.records(record(1, 64))).message() == progress.message());
}

TEST_CASE("a follower that takes over drops a round that is not in all shards") {
  constexpr uint32_t kShards = 5;
  testing::TestLoop loop;
  testing::MemoryEnv disk;
  const std::shared_ptr<ParameterStore> store = testing::makeStore(kShards, testing::kCounting);
  PSD_REQUIRE_OK(saveAtRest(disk, "/saved", 1, *store, describeStore(*store, {"sync"}).groups,
                            Consistency::perShard, {}));
  const uint32_t parts = GENERATE(0u, 1u, 2u, 3u, 4u, 5u);  // of the second round
  CAPTURE(parts);
  Follower follower(ReplicationConfig{}, [&](Env&, const Checkpoint&) -> Result<CopyPlace> {
    return CopyPlace{store.get(), nullptr};
  });
  giveImage(follower, disk, loop);
  PSD_REQUIRE_OK(loop.wait(follower.records(roundRecords(*store, 1, 1, kShards))));
  if (parts > 0) {
    PSD_REQUIRE_OK(loop.wait(follower.records(roundRecords(*store, 2, kShards + 1, parts))));
  }
  PSD_REQUIRE_OK(follower.finish());
  CHECK(testing::counts(*store) == std::vector<float>(kShards, parts == kShards ? 2.F : 1.F));
}

TEST_CASE("records arrive in pieces of any size") {
  constexpr uint32_t kShards = 3;
  testing::TestLoop loop;
  testing::MemoryEnv disk;
  const auto store = testing::makeStore(kShards, testing::kCounting);
  PSD_REQUIRE_OK(saveAtRest(disk, "/saved", 1, *store, describeStore(*store, {"locked"}).groups,
                            Consistency::perShard, {}));
  Follower follower(ReplicationConfig{}, [&](Env&, const Checkpoint&) -> Result<CopyPlace> {
    return CopyPlace{store.get(), nullptr};
  });
  giveImage(follower, disk, loop);
  std::vector<std::byte> bytes = roundRecords(*store, 1, 1, kShards);
  const auto more = roundRecords(*store, 2, kShards + 1, kShards);
  bytes.insert(bytes.end(), more.begin(), more.end());
  const size_t size = GENERATE(8, 16, 24, 40, 1000);  // a record's size is at byte 8
  CAPTURE(size);
  for (size_t at = 0; at < bytes.size(); at += size) {
    PSD_REQUIRE_OK(
        loop.wait(follower.records(std::span(bytes).subspan(at, std::min(size, bytes.size() - at)))));
  }
  CHECK(follower.progress()->held == 2 * kShards + 1);
  SECTION("all are applied") {
    PSD_REQUIRE_OK(follower.finish());
    CHECK(testing::counts(*store) == std::vector<float>(kShards, 2.F));
  }
  SECTION("one whose checksum is wrong is refused") {
    std::vector<std::byte> damaged = roundRecords(*store, 3, 2 * kShards + 1, 1);
    damaged.back() ^= std::byte{1};
    CHECK(loop.wait(follower.records(damaged)).message() == "a record from the primary has a wrong checksum");
  }
}

TEST_CASE("large records reuse memory, and their checksums span calls") {
  constexpr uint64_t kCount = 128 << 10, kUpdates = 5;
  testing::TestLoop loop;
  testing::MemoryEnv disk;
  const auto store = testing::makeStore(1, testing::kCounting, {"large", {{"w", DType::f32, {kCount}}}});
  PSD_REQUIRE_OK(saveAtRest(disk, "/saved", 1, *store, describeStore(*store, {"locked"}).groups,
                            Consistency::perShard, {}));
  Follower follower(ReplicationConfig{}, [&](Env&, const Checkpoint&) -> Result<CopyPlace> {
    return CopyPlace{store.get(), nullptr};
  });
  giveImage(follower, disk, loop);
  const size_t size = GENERATE(size_t{8} << 10, size_t{200} << 10, size_t{1} << 20);
  CAPTURE(size);
  const auto recordOf = [&](uint64_t number) {
    std::vector<std::byte> out;
    const std::vector<float> gradient(kCount, -static_cast<float>(number));
    const UpdateSource source{Rank{3}, 32, 11, Step{number}, Version{number}, 0};
    appendRecord(out, number, ShardId{0}, {{number, 1.}, gradient, {&source, 1}});
    sealRecords(out, 0);
    return out;
  };
  const auto give = [&](std::span<const std::byte> bytes) {
    Status status;
    for (size_t at = 0; at < bytes.size() && status.ok(); at += size) {
      status = loop.wait(follower.records(bytes.subspan(at, std::min(size, bytes.size() - at)))).status();
    }
    return status;
  };
  for (uint64_t number = 1; number <= kUpdates; number++) {
    PSD_REQUIRE_OK(give(recordOf(number)));
    REQUIRE(testing::holdsSoon([&] { return follower.lagBytes() == 0; }));  // its memory serves the next one
  }
  std::vector<std::byte> damaged = recordOf(kUpdates + 1);
  damaged[damaged.size() / 2] ^= std::byte{1};
  CHECK(give(damaged).message() == "a record from the primary has a wrong checksum");
  CHECK(testing::contentOf(*store).front() == std::vector<float>(kCount, 1 + 2 + 3 + 4 + 5));
}

TEST_CASE("a follower that leaves accepts nothing more, and another may still resume from what it has") {
  constexpr size_t kShards = 2;
  testing::TestLoop loop;
  testing::MemoryEnv disk;
  const auto store = testing::makeStore(kShards, testing::kCounting);
  PSD_REQUIRE_OK(saveAtRest(disk, "/saved", 1, *store, describeStore(*store, {"sync"}).groups,
                            Consistency::perShard, {}));
  Follower follower(ReplicationConfig{}, [&](Env&, const Checkpoint&) -> Result<CopyPlace> {
    return CopyPlace{store.get(), nullptr};
  });
  giveImage(follower, disk, loop);
  PSD_REQUIRE_OK(loop.wait(follower.records(roundRecords(*store, 1, 1, kShards))));
  follower.leave();
  CHECK(follower.progress().message() == "the standby is about to exit");
  CHECK(loop.wait(follower.records(roundRecords(*store, 2, kShards + 1, kShards))).error().code ==
        ErrorCode::shuttingDown);
  PSD_REQUIRE_OK(follower.finish());
  CHECK(testing::counts(*store) == std::vector<float>(kShards, 1.F));
}

TEST_CASE("a follower that is restoring a model when the run ends delays no daemon") {
  testing::TestLoop loop;
  testing::MemoryEnv disk;
  const auto store = testing::makeStore(2, testing::kCounting);
  PSD_REQUIRE_OK(saveAtRest(disk, "/saved", 1, *store, describeStore(*store, {"locked"}).groups,
                            Consistency::perShard, {}));
  std::atomic<bool> restoring{false}, restored{false};
  Follower follower(ReplicationConfig{}, [&](Env&, const Checkpoint&) -> Result<CopyPlace> {
    restoring = true;
    while (!restored) std::this_thread::yield();
    return CopyPlace{store.get(), nullptr};
  });
  for (const auto& [path, text] : disk.files()) {
    const auto bytes = std::as_bytes(std::span(text));
    PSD_REQUIRE_OK(follower.image({path, "", {bytes.begin(), bytes.end()}}));
  }
  auto image = follower.imageDone(checkpointPath("/saved", 1));
  REQUIRE(loop.until([&] { return restoring.load(); }));
  auto ended = follower.end();
  CHECK_FALSE(loop.resolved(ended));
  restored = true;
  loop.wait(kj::mv(ended));
  loop.wait(follower.end());
  CHECK(follower.finish().message() == "the run is over");
}

}  // namespace
}  // namespace psd::follower_test
