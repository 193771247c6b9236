#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/log_format.h"

namespace psd {

/// The records of the last write of a log. They may have been read from the page cache and never reached the
/// disk, because the process that wrote them died before its sync, or the sync failed. All earlier records
/// were on disk when they were written.
struct LastWrite {
  struct Place {
    uint64_t segment = 0;
    uint64_t at = 0;  ///< byte offset in the segment
    uint64_t bytes = 0;
  };
  uint64_t firstRecord = 0;
  std::vector<Place> records;  ///< contiguous; empty: no record may be missing
};

/// The end of the trusted part of a log.
struct LogEnd {
  std::optional<uint64_t> lastSegment;  ///< of this history; nullopt: there is no log
  uint64_t nextRecord = 0;              ///< LSN of the next record
  uint64_t records = 0;                 ///< number of records read
  uint64_t bytes = 0;                   ///< of the segments read
  /// The last segment has bytes after its last intact record, or no intact header.
  bool torn = false;
  uint64_t wholeBytes = 0;  ///< intact prefix of the last segment
  LastWrite lastWrite;
};

/// Result of reading one segment from its header to its last intact record.
struct SegmentContent {
  std::optional<SegmentHeader> header;  ///< nullopt: it is damaged
  uint64_t fileBytes = 0;
  uint64_t wholeBytes = 0;
  uint64_t nextRecord = 0;
  /// Empty if the bytes after the last intact record, if any, can be a torn write. Otherwise the reason why
  /// those bytes were durable once and are damaged.
  std::string damage;
};
using RecordVisitor = std::function<Status(LogRecord)>;
Result<SegmentContent> readSegment(Env& env, const std::string& path, const RecordVisitor& visit);

/// The error for a segment that was durable once and is damaged.
Error damagedSegment(const std::string& path, const std::string& why);

/// Passes the records of one history to `visit`, in order, starting with segment `from`. Skips a torn tail of
/// the last segment and reports it in the result; anything else that is missing or damaged is an Error that
/// names the file and the offset. A history without segments has no records. Blocks.
Result<LogEnd> readLog(Env& env, const std::string& folder, uint64_t history, uint64_t from,
                       const RecordVisitor& visit);

/// The first segment from `from` on that holds updates of a history other than `history`; nullopt if none
/// does.
Result<std::optional<uint64_t>> findForeignHistory(Env& env, const std::string& folder, uint64_t history,
                                                   uint64_t from);

/// Copies these records to a file, byte for byte. Blocks.
Status copyRecords(Env& env, const std::string& folder, const LastWrite& from, WritableFile& to);

/// Truncates the tail that readLog() did not trust. Blocks.
Status cutTornTail(Env& env, const std::string& folder, const LogEnd& end);

/// The highest segment number in a folder; 0 if there are no segments.
Result<uint64_t> highestSegment(Env& env, const std::string& folder);

/// The log files in a folder, of any history, intact or not. A missing folder holds none.
struct LogFiles {
  uint64_t segments = 0;
  std::string updatesIn;  ///< path of the first segment larger than its header; empty: there is none
};
Result<LogFiles> findLog(Env& env, const std::string& folder);

}  // namespace psd
