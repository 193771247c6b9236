#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/checksum/crc32c.h"
#include "common/codec/codec.h"
#include "common/safetensors/buffer_set.h"
#include "common/status/status.h"
#include "server/checkpoint/file_change.h"
#include "server/checkpoint/pending_records.h"
#include "server/membership/roster.h"
#include "server/membership/sample_plan.h"
#include "server/store/update_log.h"

namespace psd {

/// Files and folders with higher numbers are not psd's: their successor's number would overflow.
inline constexpr uint64_t kFileNumberMax = (uint64_t{1} << 63) - 1;

/// The log's byte format; docs/reference/log_format.md describes it. All numbers are little endian.

inline constexpr uint32_t kRecordFormat = 3;  ///< that is written and sent; all earlier formats are readable
inline constexpr uint64_t kSegmentHeaderBytes = 64;
inline constexpr uint64_t kRecordHeaderBytes = 80;
inline constexpr uint64_t kRecordPrefixBytes = 16;  ///< of the header: checksum and length

/// The header of each segment file. A value type.
struct SegmentHeader {
  uint64_t segment = 0;      ///< number of the segment; consecutive
  uint64_t history = 0;      ///< shared by the segments and checkpoints of one unbroken sequence of updates
  uint64_t signature = 0;    ///< of the model
  uint64_t firstRecord = 0;  ///< LSN of its first record
  bool operator==(const SegmentHeader&) const = default;
};
std::array<std::byte, kSegmentHeaderBytes> formatSegmentHeader(const SegmentHeader& header);
/// Parses a header; nullopt if the bytes are not an intact header.
std::optional<SegmentHeader> parseSegmentHeader(std::span<const std::byte> bytes);

/// "FOLDER/log-0000000012.psdlog"
std::string segmentPath(const std::string& folder, uint64_t segment);
/// The segment number in a file name; nullopt if it is not a segment's name.
std::optional<uint64_t> segmentOf(std::string_view name);

/// An assignment of samples. A value type.
struct LoggedAssignment {
  PlanTerms plan;
  SampleAssignment assignment;
};

/// A record read from a log: one update of a shard, one assignment, the finished ranks, a change of the
/// buffers, or one of a file. Owns its bytes.
struct LogRecord {
  uint64_t number = 0;                         ///< LSN
  uint64_t firstOfWrite = 0;                   ///< see RecordPlace
  std::optional<LoggedAssignment> assignment;  ///< if set, the record holds nothing else
  std::optional<Departed> departed;            ///< if set, the record holds nothing else
  std::shared_ptr<const BufferSet> buffers;    ///< if set, the record holds nothing else
  std::optional<FileChange> file;              ///< if set, the record holds nothing else
  ShardId shard;
  UpdateScalars scalars;
  std::vector<UpdateSource> sources;
  UpdatePart part = UpdatePart::whole;
  uint64_t elements = 0;               ///< values of the gradient
  std::shared_ptr<const Codec> codec;  ///< null: float32
  bool ofRows = false;                 ///< update of a row shard; rows() names the gradients' rows

  /// The update's gradient; valid while the record lives.
  Gradient gradient() const;
  /// The rows of a row shard's update; valid while the record lives.
  RowIds rows() const;
  /// Evictions and counts that accompany the update; valid while the record lives.
  RowSideChanges beside() const;

  std::vector<std::byte> bytes;  ///< the whole record, 8-byte aligned
  uint64_t gradientAt = 0;       ///< byte offset in the record
  uint64_t gradientBytes = 0;
  std::vector<RowRun> runs, evictedRuns;
  std::vector<CountedRun> countedRuns;
  /// A run of ids in the record.
  struct Ids {
    uint64_t at = 0, count = 0;  ///< byte offset in the record, and number of ids
  };
  Ids ids, evictedIds, countedIds;

 private:
  std::span<const uint64_t> idsAt(const Ids& some) const;
};

/// Size of the record of an update, in bytes.
uint64_t recordBytes(const AppliedUpdate& update);
inline constexpr uint64_t kAssignmentRecordBytes = 120;
inline uint64_t recordBytes(const LoggedAssignment&) { return kAssignmentRecordBytes; }
uint64_t recordBytes(const Departed& departed);
uint64_t recordBytes(const BufferSet& buffers);
uint64_t recordBytes(const FileChange& change);
/// Upper bound of the bytes in excess of the gradient in the record of an update of one push.
inline constexpr uint64_t kRecordBytesBesides = 256;
/// Appends a record without its checksum to `out`, whose size is and stays a multiple of 8.
void appendRecord(std::vector<std::byte>& out, uint64_t number, ShardId shard, const AppliedUpdate& update);
void appendRecord(std::vector<std::byte>& out, uint64_t number, const LoggedAssignment& assignment);
void appendRecord(std::vector<std::byte>& out, uint64_t number, const BufferSet& buffers);
/// For replication to a standby only: no log on disk holds such records.
void appendRecord(std::vector<std::byte>& out, uint64_t number, const Departed& departed);
void appendRecord(std::vector<std::byte>& out, uint64_t number, const FileChange& change);
/// Appends the record of an update to `out`. A large gradient with an owner stays in place. `space`: see
/// PendingRecords::place().
void appendRecord(PendingRecords& out, ByteBudget::Lease space, uint64_t number, ShardId shard,
                  const AppliedUpdate& update);
template <class Record>
void appendRecord(PendingRecords& out, ByteBudget::Lease space, uint64_t number, const Record& record) {
  appendRecord(out.place(recordBytes(record), std::move(space)), number, record);
}
/// Seals the consecutive records in `bytes`: sets their checksums, and the first record of this write.
/// `rest`: the end of the last record.
void sealRecords(std::span<std::byte> bytes, uint64_t firstOfWrite, std::span<const std::byte> rest = {});

/// The length announced by a record's first bytes; nullopt if they cannot start a record.
std::optional<uint64_t> recordBytes(std::span<const std::byte, kRecordPrefixBytes> prefix);

/// A record's place in the log, from its header; the checksum is not verified. A value type.
struct RecordPlace {
  uint64_t bytes = 0;  ///< of the record
  uint64_t number = 0;
  uint64_t firstOfWrite = 0;  ///< all records before this LSN were on disk when this record was written
};
/// Parses a record's header; nullopt if it is not plausible.
std::optional<RecordPlace> recordPlace(std::span<const std::byte, kRecordHeaderBytes> header);
/// Verifies the checksum of a complete record.
bool hasRightChecksum(std::span<const std::byte> record);
/// Verifies the checksum of a record whose bytes arrive one after the other. A value type.
class RecordChecksum {
 public:
  RecordChecksum() = default;
  explicit RecordChecksum(std::span<const std::byte, kRecordPrefixBytes> prefix);
  /// Adds the bytes after the prefix.
  void add(std::span<const std::byte> next) { computed_ = crc32c(next, computed_); }
  bool right() const { return computed_ == announced_; }

 private:
  uint32_t announced_ = 0, computed_ = 0;
};
/// Parses a complete record. Nullopt if the checksum is wrong: the record was torn. An Error if the record is
/// intact but this psd cannot read it.
Result<std::optional<LogRecord>> parseRecord(std::vector<std::byte> bytes);
/// Parses a record that is known to be complete and whose checksum has been verified.
Result<LogRecord> parseVerifiedRecord(std::vector<std::byte> bytes);

}  // namespace psd
