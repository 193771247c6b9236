#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/log_format.h"

namespace psd {

/// The records of the last write of a log. Whoever read them may have had them from the memory of a system
/// that never brought them to the disk: the process that wrote them died before its sync, or the sync failed.
/// All records before them were on the disk when they were written.
struct LastWrite {
  struct Place {
    uint64_t segment = 0;
    uint64_t at = 0;  ///< byte of the segment
    uint64_t bytes = 0;
  };
  uint64_t firstRecord = 0;
  std::vector<Place> records;  ///< one after the other; none: there is nothing that may be missing
};

/// The end of a log, as far as the log can be trusted.
struct LogEnd {
  std::optional<uint64_t> lastSegment;  ///< of this history; none: there is no log
  uint64_t nextRecord = 0;              ///< number that the next record has
  uint64_t records = 0;                 ///< that were read
  uint64_t bytes = 0;                   ///< of the segments that were read
  /// The last segment has bytes after its last whole record, or no whole header.
  bool torn = false;
  uint64_t wholeBytes = 0;  ///< of the last segment
  LastWrite lastWrite;
};

/// Reads one segment from its header to its last whole record.
struct SegmentContent {
  std::optional<SegmentHeader> header;  ///< none: it is not whole
  uint64_t fileBytes = 0;
  uint64_t wholeBytes = 0;
  uint64_t nextRecord = 0;
  /// Empty: what follows the last whole record, if anything does, can be a write that a crash cut off. Else
  /// why it was on the disk once and is damaged.
  std::string damage;
};
using RecordVisitor = std::function<Status(LogRecord)>;
Result<SegmentContent> readSegment(Env& env, const std::string& path, const RecordVisitor& visit);

/// The error for a segment that was on the disk once and is not any more as it was.
Error damagedSegment(const std::string& path, const std::string& why);

/// Hands the records of one history to `visit`, in order, from segment `from` on. What was cut off at the end
/// of the last segment is passed over and told of; anything else that is missing or damaged is an Error that
/// names file and place. A history without any segment has no records. Blocks.
Result<LogEnd> readLog(Env& env, const std::string& folder, uint64_t history, uint64_t from,
                       const RecordVisitor& visit);

/// The first segment from `from` on that holds updates of another history than that; nothing: none does.
Result<std::optional<uint64_t>> findOtherHistory(Env& env, const std::string& folder, uint64_t history,
                                                 uint64_t from);

/// Appends these records to a file as they are, once more. Blocks.
Status copyRecords(Env& env, const std::string& folder, const LastWrite& from, WritableFile& to);

/// Cuts off what readLog() did not trust. Blocks.
Status cutTornTail(Env& env, const std::string& folder, const LogEnd& end);

/// The highest number of any segment in a folder; 0 when there is none.
Result<uint64_t> highestSegment(Env& env, const std::string& folder);

/// The files of the log in a folder, of any history, whole or not. A folder that is not there holds none.
struct LogFiles {
  uint64_t segments = 0;
  std::string updatesIn;  ///< path of the first segment that holds more than its header; empty: none does
};
Result<LogFiles> findLog(Env& env, const std::string& folder);

}  // namespace psd
