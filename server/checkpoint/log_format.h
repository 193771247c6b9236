#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/codec/codec.h"
#include "common/status/status.h"
#include "server/membership/roster.h"
#include "server/membership/sample_plan.h"
#include "server/store/update_log.h"

namespace psd {

/// Files and folders with higher numbers are none of psd's: a number that follows would wrap.
inline constexpr uint64_t kFileNumberMax = (uint64_t{1} << 63) - 1;

/// The log's bytes; docs/log_format.md describes them. All numbers are little endian.

inline constexpr uint32_t kRecordFormat = 2;  ///< of what is written and sent; all before are read
inline constexpr uint64_t kSegmentHeaderBytes = 64;
inline constexpr uint64_t kRecordHeaderBytes = 80;
inline constexpr uint64_t kRecordPrefixBytes = 16;  ///< of its header: checksum and length

/// The header at the beginning of each file of the log. A value type.
struct SegmentHeader {
  uint64_t segment = 0;      ///< number of the segment, rising by one
  uint64_t history = 0;      ///< segments and checkpoints of one unbroken sequence of updates share it
  uint64_t signature = 0;    ///< of the model
  uint64_t firstRecord = 0;  ///< number of its first record
  bool operator==(const SegmentHeader&) const = default;
};
std::array<std::byte, kSegmentHeaderBytes> formatSegmentHeader(const SegmentHeader& header);
/// Reads a header; nothing when the bytes are no whole header.
std::optional<SegmentHeader> parseSegmentHeader(std::span<const std::byte> bytes);

/// "FOLDER/log-0000000012.psdlog"
std::string segmentPath(const std::string& folder, uint64_t segment);
/// The segment that a file name stands for, if it does.
std::optional<uint64_t> segmentOf(std::string_view name);

/// Samples that were dealt. A value type.
struct LoggedDeal {
  PlanTerms plan;
  SampleDeal deal;
};

/// One update of a shard, one deal, or a list of who has come and gone, read from a log. Owns its bytes.
struct LogRecord {
  uint64_t number = 0;               ///< in the log
  uint64_t firstOfWrite = 0;         ///< see RecordPlace
  std::optional<LoggedDeal> deal;    ///< if set, the record holds nothing else
  std::optional<Departed> departed;  ///< if set, the record holds nothing else
  ShardId shard;
  UpdateScalars scalars;
  std::vector<UpdateSource> sources;
  UpdatePart part = UpdatePart::whole;
  uint64_t elements = 0;               ///< values of the gradient
  std::shared_ptr<const Codec> codec;  ///< null: float32 values
  bool ofRows = false;                 ///< of a row shard: rows() are whose gradients these are

  /// The update's gradient, valid as long as the record.
  Gradient gradient() const;
  /// The update's rows, of a row shard, valid as long as the record.
  RowIds rows() const;
  /// What happened to rows beside it, valid as long as the record.
  RowsBeside beside() const;

  std::vector<std::byte> bytes;  ///< the whole record, 8-byte aligned
  uint64_t gradientAt = 0;       ///< byte of the record
  uint64_t gradientBytes = 0;
  std::vector<RowRun> runs, evictedRuns;
  std::vector<CountedRun> countedRuns;
  /// Ids that lie in the record one after the other.
  struct Ids {
    uint64_t at = 0, count = 0;  ///< byte of the record, and how many
  };
  Ids ids, evictedIds, countedIds;

 private:
  std::span<const uint64_t> idsAt(const Ids& some) const;
};

/// How long the record of an update will be.
uint64_t recordBytes(const AppliedUpdate& update);
inline constexpr uint64_t kDealRecordBytes = 120;
uint64_t recordBytes(const Departed& departed);
/// Upper bound of the bytes beside the gradient in the record of an update of one push.
inline constexpr uint64_t kRecordBytesBesides = 256;
/// Appends a record without its checksum to `out`, whose size is and stays a multiple of 8.
void appendRecord(std::vector<std::byte>& out, uint64_t number, ShardId shard, const AppliedUpdate& update);
void appendRecord(std::vector<std::byte>& out, uint64_t number, const LoggedDeal& deal);
/// For a daemon that follows another one: no log on the disk holds such a record.
void appendRecord(std::vector<std::byte>& out, uint64_t number, const Departed& departed);
/// Finishes the records that `bytes` holds one after the other: sets their checksums, and which record is the
/// first one that this write brings to the disk.
void sealRecords(std::span<std::byte> bytes, uint64_t firstOfWrite);

/// The length that a record's first bytes announce, if they can be a record's at all.
std::optional<uint64_t> recordBytes(std::span<const std::byte, kRecordPrefixBytes> prefix);

/// What a record's header says of the record's place in the log; the checksum is not looked at. A value type.
struct RecordPlace {
  uint64_t bytes = 0;  ///< of the record
  uint64_t number = 0;
  uint64_t firstOfWrite = 0;  ///< all records before this one were on the disk when this one was written
};
/// Reads a record's header; nothing when the bytes cannot be one.
std::optional<RecordPlace> recordPlace(std::span<const std::byte, kRecordHeaderBytes> header);
/// Whether a whole record has the checksum that it says.
bool hasRightChecksum(std::span<const std::byte> record);
/// A whole record. Nothing when the checksum is wrong: it was cut off. An Error when it is a whole record
/// that this psd cannot read.
Result<std::optional<LogRecord>> parseRecord(std::vector<std::byte> bytes);

}  // namespace psd
