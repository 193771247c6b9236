#include "server/checkpoint/replicator.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/daemon/restart_process.h"
#include "server/replica/image_stream.h"
#include "server/replica/memory_files.h"
#include "server/store/staging_pool.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"
#include "test/support/memory_env.h"

namespace psd::replicator_test {
namespace {

using namespace testing;

const std::vector<float> kGradient(16, 0.5f);

AppliedUpdate update(uint64_t number) { return {{number, 0.1}, kGradient, {}}; }

/// Appends the updates from `first` to `last` of shard 0; returns the number of the last record.
uint64_t append(Replicator& log, uint64_t first, uint64_t last) {
  uint64_t number = 0;
  for (uint64_t i = first; i <= last; i++) number = log.append(ShardId{0}, update(i), {});
  return number;
}

std::vector<LogRecord> recordsOf(Replicator::Batch& batch) {
  std::vector<LogRecord> records;
  for (const PendingRecords::Piece& piece : batch.records.pieces()) {
    std::vector<std::byte> whole = piece.bytes;
    whole.insert(whole.end(), piece.inPlace.begin(), piece.inPlace.end());
    std::span<const std::byte> left(whole);
    while (!left.empty()) {
      const uint64_t bytes = *recordBytes(left.first<kRecordPrefixBytes>());
      auto record = parseRecord({left.begin(), left.begin() + static_cast<ptrdiff_t>(bytes)});
      PSD_REQUIRE_OK(record);
      REQUIRE(*record);
      records.push_back(std::move(**record));
      left = left.subspan(bytes);
    }
  }
  return records;
}

TEST_CASE("without a follower no caller waits and nothing is kept") {
  TestLoop loop;
  Replicator log;
  CHECK(append(log, 1, 3) == 3);
  auto durable = log.whenDurable(3);
  CHECK(loop.resolved(durable));
  CHECK(log.lagBytes() == 0);
}

TEST_CASE("a follower gets what is appended from then on, and a waiter resumes when it holds that") {
  TestLoop loop;
  Replicator log;
  append(log, 1, 2);
  const auto stream = log.open();
  log.waitForStandby(true);
  CHECK(append(log, 3, 4) == 4);
  auto third = log.whenDurable(3), fourth = log.whenDurable(4);
  CHECK_FALSE(loop.resolved(third));
  loop.wait(log.whenFilled(stream));
  auto batch = log.take(stream, {});
  REQUIRE(batch);
  CHECK(batch->next == 5);
  const auto records = recordsOf(*batch);
  REQUIRE(records.size() == 2);
  CHECK(records[0].number == 3);
  CHECK(records[1].scalars.number == 4);
  log.held(stream, 4, batch->bytes / 2);
  CHECK(loop.resolved(third));
  CHECK_FALSE(loop.resolved(fourth));
  log.held(stream, 5, batch->bytes / 2);
  CHECK(loop.resolved(fourth));
  CHECK(log.lagBytes() == 0);
}

TEST_CASE("a gradient with an owner is sent in place, and its buffer is free with the batch") {
  TestLoop loop;
  Replicator log;
  const auto stream = log.open();
  const auto pool =
      StagingPool::make(StagingPool::hostMemory(), {.lentBytesMax = 1 << 20, .idleBytesMax = 0});
  const auto gathered = [&](uint64_t count) {
    auto made = pool->acquire(count);
    PSD_REQUIRE_OK(made);
    std::fill_n(made->get(), count, 0.25f);
    return *made;
  };
  std::vector<std::weak_ptr<float>> buffers;
  for (const uint64_t count :
       {1U << 15, (1U << 15) + 1, 1U << 16}) {  // the second one ends in the middle of eight bytes
    const std::shared_ptr<float> values = gathered(count);
    buffers.push_back(values);
    log.append(
        ShardId{0},
        {.scalars = {count, 0.1}, .gradient = std::span<const float>(values.get(), count), .owner = values},
        {});
    append(log, count + 1, count + 1);
  }
  CHECK(pool->lentBytes() == 0);
  CHECK_FALSE(buffers[0].expired());
  CHECK(buffers[1].expired());
  std::optional batch = log.take(stream, {});
  REQUIRE(batch);
  CHECK(batch->records.pieces()[0].inPlace.data() ==
        reinterpret_cast<const std::byte*>(buffers[0].lock().get()));
  const auto records = recordsOf(*batch);
  REQUIRE(records.size() == 6);
  for (size_t i = 0; i < 6; i += 2) {
    const std::vector<float> expected(records[i].scalars.number, 0.25f);
    CHECK(std::ranges::equal(records[i].gradient().values(), expected));
    CHECK(std::ranges::equal(records[i + 1].gradient().values(), kGradient));
  }
  uint64_t bytes = 0;
  for (const PendingRecords::Piece& piece : batch->records.pieces()) bytes += piece.size();
  CHECK(bytes == batch->bytes);
  batch->records.clear(1 << 20);
  CHECK(buffers[0].expired());
  CHECK(buffers[2].expired());

  const std::shared_ptr<float> values = gathered(1 << 15);
  const AppliedUpdate pending{
      .scalars = {9, 0.1}, .gradient = std::span<const float>(values.get(), 1 << 15), .owner = values};
  log.append(ShardId{0}, pending, {});
  CHECK(values.use_count() == 3);
  log.close(stream);
  CHECK(values.use_count() == 2);
}

TEST_CASE("a waiter for a follower that is gone waits until the log stops waiting for a standby") {
  TestLoop loop;
  Replicator log;
  const auto stream = log.open();
  log.waitForStandby(true);
  append(log, 1, 1);
  auto durable = log.whenDurable(1);
  log.close(stream);
  CHECK_FALSE(loop.resolved(durable));
  // Another follower does not hold what only the first was sent.
  log.open();
  CHECK_FALSE(loop.resolved(durable));
  log.waitForStandby(false);
  CHECK(loop.resolved(durable));
}

TEST_CASE("there is space again when the follower holds enough") {
  TestLoop loop;
  Replicator log(200);
  const auto stream = log.open();
  append(log, 1, 2);
  auto space = log.space(64);
  CHECK_FALSE(loop.resolved(space));
  auto batch = log.take(stream, {});
  log.held(stream, 3, batch->bytes);
  CHECK(loop.resolved(space));
  append(log, 3, 4);
  auto more = log.space(64);
  CHECK_FALSE(loop.resolved(more));
  log.close(stream);
  CHECK(loop.resolved(more));
}

TEST_CASE("a log on the disk is waited for too, under its own numbers") {
  TestLoop loop;
  MemoryEnv env;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const SegmentHeader first{1, 77, 5, 100};
  std::shared_ptr<LogWriter> disk = LogWriter::open(env, "/data", first, 1 << 20);
  Replicator log;
  log.resumeFrom(7);
  log.setDisk(disk);
  CHECK(append(log, 1, 2) == 8);
  log.append(Departed{2, {Rank{1}}});
  const uint64_t last = append(log, 3, 3);
  CHECK(last == 10);
  loop.wait(log.whenDurable(last));
  CHECK(disk->status().records == 3);
}

TEST_CASE("a record on its way to the disk is waited for, however many records later the disk lacks") {
  TestLoop loop;
  MemoryEnv env;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  std::shared_ptr<LogWriter> disk = LogWriter::open(env, "/data", SegmentHeader{1, 77, 5, 100}, 1 << 20);
  Replicator log;
  log.setDisk(disk);
  const uint64_t assigned = log.append(LoggedAssignment{});  // written once it is awaited
  for (uint32_t rank = 1; rank <= 20; rank++) {
    log.append(Departed{20, {Rank{rank - 1}}});
    log.append(LoggedAssignment{});
  }
  REQUIRE(disk->status().syncs == 0);
  loop.wait(log.whenDurable(assigned));
  CHECK(disk->status().syncs == 1);
}

TEST_CASE("if the disk is required, a waiter waits until its log is repaired and has a base") {
  TestLoop loop;
  MemoryEnv env;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const auto opened = [&] {
    return std::shared_ptr<LogWriter>(LogWriter::open(env, "/data", SegmentHeader{1, 77, 5, 100}, 1 << 20));
  };
  SECTION("a log without a base checkpoint yet") {
    Replicator log(UINT64_MAX, true);
    const auto disk = opened();
    log.setDisk(disk);
    auto durable = log.whenDurable(append(log, 1, 2));
    PSD_REQUIRE_OK(disk->flush());
    CHECK_FALSE(loop.resolved(durable));
    disk->setBased();
    loop.wait(kj::mv(durable));
  }
  SECTION("a log that the disk failed") {
    const bool needed = GENERATE(true, false);
    Replicator log(UINT64_MAX, needed);
    const auto disk = opened();
    disk->setBased();
    log.setDisk(disk);
    loop.wait(log.whenDurable(append(log, 1, 1)));
    env.fail({"append"}, "No space left on device");
    auto failed = log.whenDurable(append(log, 2, 2));
    CHECK_FALSE(disk->flush().ok());
    auto later = log.whenDurable(append(log, 3, 3));
    CHECK(loop.resolved(later) == !needed);
    env.heal();
    PSD_REQUIRE_OK(disk->rotate());
    if (needed) {
      auto after = log.whenDurable(append(log, 4, 4));
      PSD_REQUIRE_OK(disk->flush());
      CHECK_FALSE(loop.resolved(failed));
      CHECK_FALSE(loop.resolved(after));
      disk->setBased();  // a checkpoint holds what the log lacks
      loop.wait(kj::mv(after));
    }
    loop.wait(kj::mv(failed));
    loop.wait(kj::mv(later));
  }
}

TEST_CASE("a finished rank is a record") {
  Replicator log;
  const auto stream = log.open();
  const Departed departed{5, {Rank{0}, Rank{4}}};
  log.append(departed);
  auto batch = log.take(stream, {});
  const auto records = recordsOf(*batch);
  REQUIRE(records.size() == 1);
  CHECK(records[0].departed == departed);
}

TEST_CASE("files arrive at the follower as written") {
  ImageStream stream(10);
  MemoryFiles files;
  const std::string text = "what a checkpoint holds, in several parts";
  auto file = stream.create("a/x.tmp");
  PSD_REQUIRE_OK(file);
  std::thread writer([&] {
    static_cast<void>((*file)->append(std::as_bytes(std::span(text))));
    static_cast<void>((*file)->sync());
    static_cast<void>(stream.rename("a/x.tmp", "a/x"));
    stream.finish();
  });
  TestLoop loop;
  for (;;) {
    loop.wait(stream.whenFilled());
    auto part = stream.take();
    if (!part) break;
    CHECK(part->bytes.size() <= 10);
    if (part->renamedTo.empty()) {
      CHECK(files.append(part->path, part->bytes).ok());
    } else {
      CHECK(files.rename(part->path, part->renamedTo).ok());
    }
  }
  writer.join();
  auto read = files.open("a/x");
  PSD_REQUIRE_OK(read);
  std::string arrived((*read)->size(), ' ');
  PSD_REQUIRE_OK((*read)->read(0, std::as_writable_bytes(std::span(arrived))));
  CHECK(arrived == text);
  CHECK_FALSE((*read)->read(arrived.size(), std::as_writable_bytes(std::span(arrived))).ok());
}

TEST_CASE("sending files to a follower that is gone fails") {
  ImageStream stream(10);
  stream.end();
  auto file = stream.create("x");
  PSD_REQUIRE_OK(file);
  const std::string text(100, 'x');
  CHECK((*file)->append(std::as_bytes(std::span(text))).error().code == ErrorCode::unavailable);
}

TEST_CASE("a restarted process keeps its arguments except the addresses") {
  const std::vector<std::string> before = {"psd",      "--listen", "tcp://localhost:0",
                                           "--config", "c.json",   "--http",
                                           "--set",    "a=b",      "--listen=unix:///x"};
  CHECK(restartArguments(before, {"tcp://127.0.0.1:41"}, {"http://127.0.0.1:42/"}) ==
        std::vector<std::string>{"psd", "--config", "c.json", "--set", "a=b", "--listen=tcp://127.0.0.1:41",
                                 "--http=tcp://127.0.0.1:42"});
  CHECK(restartArguments({"psd"}, {}, {}) == std::vector<std::string>{"psd"});
}

}  // namespace
}  // namespace psd::replicator_test
