// A segment of the log: read, replayed over a store, truncated. Its checksums are corrected first, or not.

#include <cstring>

#include "common/checksum/crc32c.h"
#include "server/checkpoint/log_reader.h"
#include "server/checkpoint/replay.h"
#include "test/fuzz/fuzz_list.h"
#include "test/fuzz/small_store.h"

namespace psd::fuzz {
namespace {
namespace log_fuzz {

constexpr uint64_t kHistory = 77;

std::string seedSegment(const std::string& codecSpec) {
  const auto store = makeSmallStore();
  const auto header = formatSegmentHeader({1, kHistory, store->model().signature(), 1});
  std::vector<std::byte> bytes(header.begin(), header.end());
  const auto codec = makeCodec(codecSpec);
  uint64_t record = 1;
  for (uint64_t number = 1; number <= 2; number++) {
    for (size_t i = 0; i < store->shardCount(); i++, record++) {
      const std::vector<float> gradient(store->shard(i).range().count, 0.25f);
      std::vector<uint64_t> code(((*codec)->encodedBytes(gradient.size()) + 7) / 8);
      auto* const encoded = reinterpret_cast<std::byte*>(code.data());
      require((*codec)->encode(gradient, 1, encoded).ok(), "a small gradient can be encoded");
      const Codec::Bytes exact(encoded, (*codec)->encodedBytes(gradient.size()));
      const UpdateSource source{Rank{1}, 32, 5, Step{number}, Version{number - 1}, 0};
      std::vector<std::byte> batch;
      appendRecord(batch, record, store->shard(i).range().id,
                   {{number, 0.1}, Gradient(**codec, exact, gradient.size()), {&source, 1}});
      sealRecords(batch, record);
      bytes.insert(bytes.end(), batch.begin(), batch.end());
    }
    // Rows, with others evicted and counted.
    const std::vector<uint64_t> ids = {1, 2, 3}, evicted = {number}, counted = {3, 9};
    const RowRun run{0, 3}, out{0, 1};
    const CountedRun counts{0, 2, 3, 2};
    const std::vector<float> gradient(6, 0.25f);
    const UpdateSource source{Rank{1}, 32, 5, Step{number}, Version{number - 1}, 0};
    std::vector<std::byte> batch;
    appendRecord(batch, record, store->rowShard(0).id(),
                 {.scalars = {number, 0.1},
                  .gradient = std::span<const float>(gradient),
                  .sources = {&source, 1},
                  .rows = RowIds{{&run, 1}, ids},
                  .beside = {{{&out, 1}, evicted}, {&counts, 1}, counted}});
    sealRecords(batch, record++);
    bytes.insert(bytes.end(), batch.begin(), batch.end());
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void putChecksum(std::string& bytes, size_t at, size_t coveredFrom, size_t coveredTo) {
  const uint32_t crc = crc32c(bytesOf(std::string_view(bytes).substr(coveredFrom, coveredTo - coveredFrom)));
  std::memcpy(bytes.data() + at, &crc, sizeof crc);
}

/// With correct checksums as far as the records' lengths are valid.
std::string sealed(std::string bytes) {
  if (bytes.size() < kSegmentHeaderBytes) return bytes;
  putChecksum(bytes, 12, 16, kSegmentHeaderBytes);
  for (size_t at = kSegmentHeaderBytes; bytes.size() - at >= kRecordHeaderBytes;) {
    const auto rest = bytesOf(bytes).subspan(at);
    const auto length = recordBytes(rest.first<kRecordPrefixBytes>());
    if (!length || *length > rest.size()) break;
    putChecksum(bytes, at, at + 4, at + *length);
    at += *length;
  }
  return bytes;
}

/// Input: 's' for correct checksums, or anything else, and a segment.
void run(Bytes input) {
  if (input.empty()) return;
  testing::MemoryEnv env;
  require(env.createFolder("/data").ok(), "there is a folder");
  std::string bytes(textOf(input.subspan(1)));
  if (static_cast<char>(input[0]) == 's') bytes = sealed(std::move(bytes));
  env.put(segmentPath("/data", 1), bytes);
  const auto store = makeSmallStore();
  Replayer replayer(*store);
  const auto end =
      readLog(env, "/data", kHistory, 1, [&](LogRecord record) { return replayer.apply(record); });
  if (!end.ok()) {
    require(!end.message().empty(), "the error of a rejected log is not empty");
    return;
  }
  if (!end->lastSegment) return;
  require(cutTornTail(env, "/data", *end).ok(), "the untrusted tail can be truncated");
  uint64_t records = 0;
  const auto again = readLog(env, "/data", kHistory, 1, [&](const LogRecord&) {
    records++;
    return Status();
  });
  require(again.ok() && !again->torn, "a truncated log is whole");
  require(records == end->records, "truncation keeps the trusted records");
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds;
  for (std::string_view codec : codecNames()) seeds.push_back("s" + seedSegment(std::string(codec)));
  seeds.push_back("r" + seedSegment("none"));
  return seeds;
}

}  // namespace log_fuzz
}  // namespace

const FuzzTarget kLogTarget{"log", "a segment of the log", log_fuzz::run, log_fuzz::seeds};

}  // namespace psd::fuzz
