#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "server/checkpoint/log_reader.h"
#include "server/checkpoint/log_writer.h"
#include "server/store/staging_pool.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"
#include "test/support/holds_soon.h"
#include "test/support/memory_env.h"

namespace psd::log_test {
namespace {

using namespace testing;

constexpr SegmentHeader kFirst{1, 77, 5, 1};  // segment, history, signature, first record

Result<std::vector<LogRecord>> allRecords(Env& env, uint64_t history = kFirst.history) {
  std::vector<LogRecord> records;
  auto end = readLog(env, "/data", history, 1, [&](const LogRecord& record) {
    records.push_back(record);
    return Status();
  });
  if (!end.ok()) return end.error();
  return records;
}

TEST_CASE("the log returns each update as it was appended, in any codec") {
  const std::string_view name = GENERATE(from_range(codecNames()));
  INFO(name);
  MemoryEnv env;
  auto codec = makeCodec(name);
  PSD_REQUIRE_OK(codec);
  const std::vector<float> values = {1, -2, 3.5f, 0, 7};
  std::vector<uint64_t> encoded(((*codec)->encodedBytes(values.size()) + 7) / 8);
  auto* const bytes = reinterpret_cast<std::byte*>(encoded.data());
  PSD_REQUIRE_OK((*codec)->encode(values, 1, bytes));
  const std::span<const std::byte> code(bytes, (*codec)->encodedBytes(values.size()));
  const std::vector<UpdateSource> sources = {{Rank{1}, 32, 5, Step{6}, Version{7}, 8},
                                             {Rank{2}, 16, 9, Step{10}, Version{11}, 12}};
  PSD_REQUIRE_OK(env.createFolder("/data"));
  {
    auto log = LogWriter::open(env, "/data", kFirst, 1 << 20);
    CHECK(log->append(ShardId{2}, {{41, 0.5}, values, sources}) == 1);
    // As a daemon has it, which does not know a trainer's options.
    CHECK(log->append(ShardId{0}, {{42, 0.25}, Gradient(*findDecoder(name), code, values.size()), {}}) == 2);
  }
  auto records = allRecords(env);
  PSD_REQUIRE_OK(records);
  REQUIRE(records->size() == 2);
  const LogRecord &plain = (*records)[0], &coded = (*records)[1];
  CHECK(plain.number == 1);
  CHECK(plain.shard == ShardId{2});
  CHECK(plain.scalars.number == 41);
  CHECK(plain.scalars.learningRate == 0.5);
  CHECK(std::vector<float>(plain.gradient().values().begin(), plain.gradient().values().end()) == values);
  REQUIRE(plain.sources.size() == 2);
  CHECK(plain.sources[1].rank == Rank{2});
  CHECK(plain.sources[1].samples == 16);
  CHECK(plain.sources[1].incarnation == 9);
  CHECK(plain.sources[1].step == Step{10});
  CHECK(plain.sources[1].basis == Version{11});
  CHECK(plain.sources[1].staleness == 12);
  REQUIRE(coded.codec);
  CHECK(coded.codec->name() == name);
  CHECK(std::memcmp(coded.gradient().bytes().data(), code.data(), code.size()) == 0);
}

TEST_CASE("a record whose gradient stays in place has the same bytes as a copied one") {
  constexpr uint64_t kCount = 1 << 15;
  MemoryEnv env;
  auto pool = StagingPool::make(StagingPool::hostMemory(), {.lentBytesMax = 1 << 20, .idleBytesMax = 0});
  auto values = pool->acquire(kCount);
  PSD_REQUIRE_OK(values);
  std::fill_n(values->get(), kCount, 0.5f);
  const std::vector<UpdateSource> sources = {{Rank{1}, 32, 5, Step{6}, Version{7}, 8}};
  const std::span<const float> gradient(values->get(), kCount);
  AppliedUpdate update{{41, 0.5}, gradient, sources};
  std::vector<std::byte> copied;
  for (uint64_t number = 1; number <= 3; number++) appendRecord(copied, number, ShardId{2}, update);
  sealRecords(copied, 1);
  update.owner = *values;
  {
    PendingRecords pending;
    for (uint64_t number = 1; number <= 3; number++) appendRecord(pending, {}, number, ShardId{2}, update);
    std::vector<std::byte> inPlace;
    for (PendingRecords::Piece& piece : pending.pieces()) {
      sealRecords(piece.bytes, 1, piece.inPlace);
      for (const auto part : piece.parts()) inPlace.insert(inPlace.end(), part.begin(), part.end());
      CHECK(piece.inPlace.data() == reinterpret_cast<const std::byte*>(values->get()));
    }
    CHECK(inPlace == copied);
  }
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const long held = values->use_count();
  auto log = LogWriter::open(env, "/data", kFirst, 1 << 20);
  for (int i = 0; i < 3; i++) log->append(ShardId{2}, update);
  PSD_REQUIRE_OK(log->flush());
  CHECK(holdsSoon([&] { return values->use_count() == held; }));
  auto records = allRecords(env);
  PSD_REQUIRE_OK(records);
  REQUIRE(records->size() == 3);
  for (const LogRecord& record : *records) CHECK(std::ranges::equal(record.gradient().values(), gradient));

  env.fail({}, "no space left");
  log->append(ShardId{2}, update);
  CHECK(!log->flush().ok());
  CHECK(holdsSoon([&] { return values->use_count() == held; }));
}

TEST_CASE("a segment of an older version is read, and one of an incompatible version is rejected by that") {
  auto bytes = formatSegmentHeader(kFirst);
  CHECK(std::memcmp(bytes.data(), "PSDLOG3\n", 8) == 0);
  const auto withVersion = [&](char version) {
    bytes[6] = static_cast<std::byte>(version);
    return parseSegmentHeader(bytes);
  };
  CHECK(withVersion('1') == kFirst);
  CHECK(withVersion('2') == kFirst);
  CHECK(withVersion('3') == kFirst);
  CHECK_FALSE(withVersion('4'));
}

TEST_CASE("the log returns the hyperparameters of an update, beside those without") {
  MemoryEnv env;
  const std::vector<float> values(48, 2.f);
  const Hyperparameters pushed{{{0.1, 0.9, 0, 1e-3}, {0.2, 0, 0, 0}}, {{16, 0}, {32, 1}, {48, 0, false}}};
  PSD_REQUIRE_OK(env.createFolder("/data"));
  {
    auto log = LogWriter::open(env, "/data", kFirst, 1 << 20);
    AppliedUpdate update{{1, 0.25}, values, {}};
    update.scalars.pushed = std::make_shared<const Hyperparameters>(pushed);
    update.scalars.factor = 0.5;
    log->append(ShardId{0}, update);
    log->append(ShardId{0}, {{2, 1.}, values, {}});
  }
  auto records = allRecords(env);
  PSD_REQUIRE_OK(records);
  REQUIRE(records->size() == 2);
  const LogRecord& record = records->front();
  REQUIRE(record.scalars.pushed);
  CHECK(*record.scalars.pushed == pushed);
  CHECK(record.scalars.factor == 0.5);
  CHECK(record.scalars.learningRate == 0.25);
  CHECK(std::ranges::equal(record.gradient().values(), values));
  CHECK_FALSE((*records)[1].scalars.pushed);
}

TEST_CASE("the log distinguishes a bridge's difference from a gradient") {
  MemoryEnv env;
  const std::vector<float> values = {1, -2, 3.5f, 0, 7};
  PSD_REQUIRE_OK(env.createFolder("/data"));
  {
    auto log = LogWriter::open(env, "/data", kFirst, 1 << 20);
    AppliedUpdate difference{{1, 1.}, values, {}};
    difference.scalars.difference = true;
    log->append(ShardId{0}, difference);
    log->append(ShardId{0}, {{2, 1.}, values, {}});
  }
  auto records = allRecords(env);
  PSD_REQUIRE_OK(records);
  REQUIRE(records->size() == 2);
  CHECK((*records)[0].scalars.difference);
  CHECK_FALSE((*records)[0].ofRows);
  CHECK(std::ranges::equal((*records)[0].gradient().values(), values));
  CHECK_FALSE((*records)[1].scalars.difference);
}

TEST_CASE("an assignment is logged before the update that follows it, and costs no sync of its own") {
  MemoryEnv env;
  TestLoop loop;
  const LoggedAssignment logged{{3, 400, 40, 2}, {{Step{7}, {5, 16, 8}}, {Rank{1}, 0x123456789abcdef0}, 99}};
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const std::vector<float> gradient(4, 1.f);
  auto log = LogWriter::open(env, "/data", kFirst, 1 << 20);
  loop.wait(log->whenDurable(log->append(ShardId{0}, {{1, 1.}, gradient, {}})));
  log->append(logged);
  log->append(logged);
  CHECK(log->status().syncs == 1);
  loop.wait(log->whenDurable(log->append(ShardId{0}, {{2, 1.}, gradient, {}})));
  CHECK(log->status().syncs == 2);
  log->append(logged);
  log = nullptr;
  const auto records = allRecords(env);
  PSD_REQUIRE_OK(records);
  REQUIRE(records->size() == 5);
  for (const size_t i : {1, 2, 4}) {
    const LogRecord& record = (*records)[i];
    CHECK(record.number == i + 1);
    REQUIRE(record.assignment);
    CHECK(record.assignment->plan == logged.plan);
    CHECK(record.assignment->assignment == logged.assignment);
  }
  CHECK((*records)[3].scalars.number == 2);
  CHECK_FALSE((*records)[3].assignment);
}

TEST_CASE("many updates share one sync, and a segment ends when it is full") {
  MemoryEnv env;
  TestLoop loop;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const std::vector<float> gradient(1000, 1.f);
  Histogram syncSeconds(kSecondsBounds);
  auto log = LogWriter::open(env, "/data", kFirst, 64 << 10, ByteBudget::make(UINT64_MAX), {}, &syncSeconds);
  uint64_t last = 0;
  for (uint64_t i = 1; i <= 200; i++) last = log->append(ShardId{0}, {{i, 1.}, gradient, {}});
  loop.wait(log->whenDurable(last));
  CHECK(log->status().syncs < 200);
  CHECK(syncSeconds.value().count == log->status().syncs);
  log = nullptr;
  CHECK(highestSegment(env, "/data").value() > 1);
  auto records = allRecords(env);
  PSD_REQUIRE_OK(records);
  REQUIRE(records->size() == 200);
  for (size_t i = 0; i < 200; i++) REQUIRE((*records)[i].scalars.number == i + 1);
}

/// Bytes of a segment whose records are written in batches of `batches` records each, contiguous on the disk.
std::string segmentOfBatches(const std::vector<uint64_t>& batches) {
  const auto header = formatSegmentHeader(kFirst);
  std::vector<std::byte> bytes(header.begin(), header.end());
  uint64_t number = kFirst.firstRecord;
  for (uint64_t records : batches) {
    std::vector<std::byte> batch;
    for (uint64_t i = 0; i < records; i++, number++) {
      const std::vector<float> gradient = {1.f * static_cast<float>(number), 2};
      appendRecord(batch, number, ShardId{0}, {{number, 1.}, gradient, {}});
    }
    sealRecords(batch, number - records);
    bytes.insert(bytes.end(), batch.begin(), batch.end());
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The number of trusted records of the only segment, or the error if the log is rejected.
Result<size_t> trusted(MemoryEnv& env, const std::string& segment) {
  env.put(segmentPath("/data", 1), segment);
  PSD_ASSIGN_OR_RETURN(const auto records, allRecords(env));
  for (size_t i = 0; i < records.size(); i++) {
    REQUIRE(records[i].gradient().values()[0] == static_cast<float>(i + 1));
  }
  return records.size();
}

TEST_CASE("a damaged byte ends the log only where a crash can have truncated it, else the log is rejected") {
  MemoryEnv env;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const std::string whole = segmentOfBatches({1, 1, 1}), path = segmentPath("/data", 1);
  const size_t record = (whole.size() - kSegmentHeaderBytes) / 3;
  for (size_t at = 0; at < whole.size(); at++) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << at % 8);
    INFO("byte " << at);
    const auto found = trusted(env, damaged);
    if (at >= kSegmentHeaderBytes + 2 * record) {
      PSD_REQUIRE_OK(found);
      REQUIRE(*found == 2);
      continue;
    }
    REQUIRE_FALSE(found.ok());
    REQUIRE(found.message().find("'" + path + "' is damaged") != std::string::npos);
    if (at < kSegmentHeaderBytes) continue;
    const size_t number = (at - kSegmentHeaderBytes) / record;
    const std::string place = "record " + std::to_string(number + 1) + " at byte " +
                              std::to_string(kSegmentHeaderBytes + number * record);
    REQUIRE(found.message().find(place) != std::string::npos);
    REQUIRE(found.message().find("durability.resume=PATH") != std::string::npos);
  }
}

TEST_CASE("any part of a write cut off by a crash may be on the disk, and none of it is trusted") {
  MemoryEnv env;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const std::string whole = segmentOfBatches({2, 3});
  const size_t record = (whole.size() - kSegmentHeaderBytes) / 5, synced = kSegmentHeaderBytes + 2 * record;
  for (size_t length = synced; length < whole.size(); length++) {
    REQUIRE(trusted(env, whole.substr(0, length)).value() == 2 + (length - synced) / record);
  }
  std::string lateOnly = whole;
  lateOnly.replace(synced, record + 8, record + 8, '\0');
  CHECK(trusted(env, lateOnly).value() == 2);
  // A later write proves that all of it was there.
  std::string followed = segmentOfBatches({2, 3, 1});
  CHECK(trusted(env, followed).value() == 6);
  followed.replace(synced, record, record, '\0');
  CHECK_FALSE(trusted(env, followed).ok());
  followed.resize(followed.size() - 1);
  CHECK(trusted(env, followed).value() == 2);
}

TEST_CASE("a segment that another one follows ends with a whole record, or the log is rejected") {
  MemoryEnv env;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const std::string whole = segmentOfBatches({1, 1, 1}), path = segmentPath("/data", 1);
  env.put(path, whole.substr(0, whole.size() - 1));
  LogWriter::open(env, "/data", {0, kFirst.history, kFirst.signature, 4}, 1 << 20);
  const auto records = allRecords(env);
  REQUIRE_FALSE(records.ok());
  CHECK(records.message().find(path) != std::string::npos);
  CHECK(records.message().find("record 3 at byte") != std::string::npos);
}

TEST_CASE("existing files are never overwritten, even if the folder cannot be listed for a while") {
  MemoryEnv env;
  TestLoop loop;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const std::string whole = segmentOfBatches({1, 1}), path = segmentPath("/data", 1);
  env.put(path, whole);
  env.fail({"list"}, "Input/output error");
  auto log = LogWriter::open(env, "/data", kFirst, 1 << 20);
  CHECK(log->broken());
  CHECK(log->append(ShardId{0}, {{3, 1.}, std::vector<float>{1.f}, {}}) == 0);
  CHECK_FALSE(log->rotate().ok());
  env.heal();
  const auto place = log->rotate();
  PSD_REQUIRE_OK(place);
  CHECK(place->segment == 2);
  CHECK(place->history != kFirst.history);
  CHECK_FALSE(log->broken());
  CHECK(env.bytes(path) == whole);
}

TEST_CASE("the segment that a checkpoint names exists and starts with a header, or the log is rejected") {
  MemoryEnv env;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const std::string whole = segmentOfBatches({1}), path = segmentPath("/data", 1);
  const bool another = GENERATE(true, false);
  if (another) env.put(segmentPath("/data", 2), "");  // as a crash leaves one that is being created
  const auto missing = allRecords(env);
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.message() == "'" + path +
                                 "' is missing: it is the first segment of the log after the checkpoint; to "
                                 "resume from a checkpoint without the log, use durability.resume=PATH");
  for (const size_t bytes : {size_t{0}, size_t{10}, kSegmentHeaderBytes - 1}) {
    const auto cut = trusted(env, whole.substr(0, bytes));
    REQUIRE_FALSE(cut.ok());
    CHECK(cut.message().find("'" + path + "' is damaged: ") == 0);
  }
  CHECK(trusted(env, whole.substr(0, kSegmentHeaderBytes)).value() == 0);
  CHECK(trusted(env, whole).value() == 1);
}

TEST_CASE("numbers of segments do not wrap") {
  MemoryEnv env;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  env.put("/data/log-18446744073709551615.psdlog", "");
  env.put("/data/log-00000000009.psdlog", "");  // not a name that psd writes
  CHECK(highestSegment(env, "/data").value() == 0);
  CHECK_FALSE(LogWriter::open(env, "/data", kFirst, 1 << 20)->broken());
  CHECK(highestSegment(env, "/data").value() == 1);
  env.put(segmentPath("/data", kFileNumberMax), "");
  const auto log = LogWriter::open(env, "/data", kFirst, 1 << 20);
  CHECK(log->status().error ==
        "'/data/log-9223372036854775807.psdlog' leaves no number for another segment; move it away");
}

TEST_CASE("while the disk is full segments do not accumulate") {
  MemoryEnv env;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const auto log = LogWriter::open(env, "/data", kFirst, 1 << 20);
  const std::string what = GENERATE("append", "sync", "syncFolder");
  env.fail({what}, "No space left on device");
  for (int i = 0; i < 5; i++) CHECK_FALSE(log->rotate().ok());
  env.heal();
  CHECK(env.list("/data").value() == std::vector<std::string>{"log-0000000001.psdlog"});
  PSD_REQUIRE_OK(log->rotate());
}

TEST_CASE("a log breaks when its folder belongs to another process") {
  MemoryEnv env;
  TestLoop loop;
  PSD_REQUIRE_OK(env.createFolder("/data"));
  const auto log = LogWriter::open(env, "/data", kFirst, 1 << 20);
  std::atomic<bool> ours{true};
  log->setFolderCheck([&] { return ours ? Status() : Status(ErrorCode::unavailable, "another daemon's"); });
  loop.wait(log->whenDurable(log->append(ShardId{0}, {{1, 1.}, std::vector<float>{1.f}, {}})));
  CHECK_FALSE(log->broken());
  ours = false;
  REQUIRE(loop.until([&] { return log->broken(); }));
  CHECK(log->status().error == "another daemon's");
}

}  // namespace
}  // namespace psd::log_test
