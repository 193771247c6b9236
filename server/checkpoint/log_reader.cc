#include "server/checkpoint/log_reader.h"

#include <algorithm>

namespace psd {
namespace {

constexpr std::string_view kBadHeader = "its header, bytes 0 to 63, is not intact";

Result<std::vector<uint64_t>> listSegments(Env& env, const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.list(folder));
  std::vector<uint64_t> segments;
  for (const std::string& name : names) {
    if (auto segment = segmentOf(name)) segments.push_back(*segment);
  }
  std::sort(segments.begin(), segments.end());
  return segments;
}

constexpr std::string_view kWithoutLog =
    "; to resume from a checkpoint without the log, use durability.resume=PATH";

/// An intact record that was written after earlier ones were on disk.
struct LaterRecord {
  uint64_t at = 0;
  uint64_t number = 0;
};

/// The first record after `from`, if any, that was written when record `number` was on disk. Records of the
/// same write as `number` prove nothing: of a torn write, a disk may keep the end and not the beginning.
Result<std::optional<LaterRecord>> findLaterRecord(const ReadableFile& file, uint64_t from, uint64_t number) {
  constexpr uint64_t kPiece = 1 << 20;
  std::vector<std::byte> piece, record;
  for (uint64_t begin = from; begin + kRecordHeaderBytes <= file.size(); begin += kPiece) {
    // A header may straddle the end of a piece.
    piece.resize(std::min(kPiece + kRecordHeaderBytes - 8, file.size() - begin));
    PSD_RETURN_IF_ERROR(file.read(begin, piece));
    for (uint64_t at = 0; at + kRecordHeaderBytes <= piece.size(); at += 8) {
      const auto place = recordPlace(std::span(piece).subspan(at).first<kRecordHeaderBytes>());
      if (!place || place->firstOfWrite <= number || place->number < place->firstOfWrite) continue;
      if (place->bytes > file.size() - begin - at) continue;
      record.resize(place->bytes);
      PSD_RETURN_IF_ERROR(file.read(begin + at, record));
      if (hasRightChecksum(record)) return std::optional(LaterRecord{begin + at, place->number});
    }
  }
  return std::optional<LaterRecord>();
}

/// Why the bytes after the last intact record cannot be a torn write; empty if they can.
Result<std::string> damageAfter(const ReadableFile& file, uint64_t wholeBytes, uint64_t nextRecord) {
  PSD_ASSIGN_OR_RETURN(const auto later, findLaterRecord(file, wholeBytes, nextRecord));
  if (!later) return std::string();
  return "record " + std::to_string(nextRecord) + " at byte " + std::to_string(wholeBytes) +
         " is not intact, but record " + std::to_string(later->number) + " at byte " +
         std::to_string(later->at) + " was written after it was on disk";
}

/// Adds a record to the last write.
void follow(LastWrite& last, const LogRecord& record, const LastWrite::Place& place) {
  if (last.records.empty() || record.firstOfWrite != last.firstRecord) {
    last.firstRecord = record.firstOfWrite;
    last.records.clear();
  }
  last.records.push_back(place);
}

/// Reads the records of a segment beyond the end of the log so far: a segment that starts with the last write
/// of the previous one repeats records.
Result<SegmentContent> readNewRecords(Env& env, const std::string& path, uint64_t segment, LogEnd& end,
                                      const RecordVisitor& visit) {
  uint64_t at = kSegmentHeaderBytes;
  return readSegment(env, path, [&](LogRecord record) -> Status {
    const LastWrite::Place place{segment, at, record.bytes.size()};
    at += place.bytes;
    if (record.number < end.nextRecord) return {};
    follow(end.lastWrite, record, place);
    end.nextRecord = record.number + 1;
    end.records++;
    return visit(std::move(record));
  });
}

}  // namespace

Error damagedSegment(const std::string& path, const std::string& why) {
  return {ErrorCode::io, "'" + path + "' is damaged: " + why + std::string(kWithoutLog)};
}

Result<SegmentContent> readSegment(Env& env, const std::string& path, const RecordVisitor& visit) {
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, env.open(path));
  SegmentContent content;
  content.fileBytes = file->size();
  std::vector<std::byte> bytes(std::min(file->size(), kSegmentHeaderBytes));
  PSD_RETURN_IF_ERROR(file->read(0, bytes));
  content.header = parseSegmentHeader(bytes);
  if (!content.header) {
    // The segment's header is on disk before the first record is written.
    if (file->size() > kSegmentHeaderBytes) content.damage = kBadHeader;
    return content;
  }
  content.nextRecord = content.header->firstRecord;
  content.wholeBytes = kSegmentHeaderBytes;
  while (file->size() - content.wholeBytes >= kRecordPrefixBytes) {
    std::array<std::byte, kRecordPrefixBytes> prefix;
    PSD_RETURN_IF_ERROR(file->read(content.wholeBytes, prefix));
    const auto length = recordBytes(prefix);
    if (!length || *length > file->size() - content.wholeBytes) break;
    std::vector<std::byte> record(*length);
    PSD_RETURN_IF_ERROR(file->read(content.wholeBytes, record));
    auto parsed = parseRecord(std::move(record));
    if (!parsed.ok()) return Error{ErrorCode::io, "'" + path + "': " + parsed.message()};
    if (!*parsed || (*parsed)->number != content.nextRecord) break;
    PSD_RETURN_IF_ERROR(visit(std::move(**parsed)));
    content.wholeBytes += *length;
    content.nextRecord++;
  }
  PSD_ASSIGN_OR_RETURN(content.damage, damageAfter(*file, content.wholeBytes, content.nextRecord));
  return content;
}

Result<LogEnd> readLog(Env& env, const std::string& folder, uint64_t history, uint64_t from,
                       const RecordVisitor& visit) {
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> segments, listSegments(env, folder));
  LogEnd end;
  std::string lastPath;
  for (uint64_t segment : segments) {
    if (segment < from) continue;
    const std::string path = segmentPath(folder, segment);
    const uint64_t expected = end.nextRecord;
    // The header decides before the first record is read, so it is read twice.
    PSD_ASSIGN_OR_RETURN(const auto file, env.open(path));
    std::vector<std::byte> bytes(std::min(file->size(), kSegmentHeaderBytes));
    PSD_RETURN_IF_ERROR(file->read(0, bytes));
    const auto header = parseSegmentHeader(bytes);
    if (!header) {
      // The header of the segment named in the manifest was on disk before the manifest was.
      if (file->size() > kSegmentHeaderBytes || segment == from)
        return damagedSegment(path, std::string(kBadHeader));
      // Creating the last segment failed in a crash or on a full disk: it cannot hold any record.
      if (segment != segments.back()) continue;
      end.lastSegment = segment;
      end.torn = true;
      end.wholeBytes = 0;
      break;
    }
    if (header->history != history) continue;
    if (header->segment != segment) return damagedSegment(path, "its header is that of another segment");
    if (!end.lastSegment && segment != from) {
      return Error{ErrorCode::io, "'" + segmentPath(folder, from) + "' is missing, and '" + path +
                                      "' follows it" + std::string(kWithoutLog)};
    }
    if (end.lastSegment && header->firstRecord > expected) {
      return damagedSegment(lastPath, "record " + std::to_string(expected) + " at byte " +
                                          std::to_string(end.wholeBytes) + " is missing, and '" + path +
                                          "' follows it");
    }
    PSD_ASSIGN_OR_RETURN(const SegmentContent content, readNewRecords(env, path, segment, end, visit));
    if (!content.damage.empty()) return damagedSegment(path, content.damage);
    end.lastSegment = segment;
    end.nextRecord = std::max(end.nextRecord, content.nextRecord);
    end.torn = content.wholeBytes != content.fileBytes;
    end.wholeBytes = content.wholeBytes;
    end.bytes += content.wholeBytes;
    lastPath = path;
  }
  if (!end.lastSegment || end.nextRecord == 0) {
    return Error{ErrorCode::io, "'" + segmentPath(folder, from) +
                                    "' is missing: it is the first segment of the log after the checkpoint" +
                                    std::string(kWithoutLog)};
  }
  return end;
}

Result<std::optional<uint64_t>> findForeignHistory(Env& env, const std::string& folder, uint64_t history,
                                                   uint64_t from) {
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> segments, listSegments(env, folder));
  for (uint64_t segment : segments) {
    if (segment < from) continue;
    PSD_ASSIGN_OR_RETURN(const auto file, env.open(segmentPath(folder, segment)));
    if (file->size() <= kSegmentHeaderBytes) continue;
    std::vector<std::byte> bytes(kSegmentHeaderBytes);
    PSD_RETURN_IF_ERROR(file->read(0, bytes));
    const auto header = parseSegmentHeader(bytes);
    if (header && header->history != history) return std::optional(segment);
  }
  return std::optional<uint64_t>();
}

Status copyRecords(Env& env, const std::string& folder, const LastWrite& from, WritableFile& to) {
  std::unique_ptr<ReadableFile> file;
  uint64_t segment = 0;
  std::vector<std::byte> record;
  for (const LastWrite::Place& place : from.records) {
    const std::string path = segmentPath(folder, place.segment);
    if (!file || place.segment != segment) {
      PSD_ASSIGN_OR_RETURN(file, env.open(path));
      segment = place.segment;
    }
    record.resize(place.bytes);
    PSD_RETURN_IF_ERROR(file->read(place.at, record));
    // Bytes that never reached the disk are lost when the page cache drops them.
    if (!hasRightChecksum(record)) {
      return Error{ErrorCode::io,
                   "'" + path + "': byte " + std::to_string(place.at) + " has changed since it was read"};
    }
    PSD_RETURN_IF_ERROR(to.append(record));
  }
  return {};
}

Status cutTornTail(Env& env, const std::string& folder, const LogEnd& end) {
  if (!end.torn) return {};
  const std::string path = segmentPath(folder, *end.lastSegment);
  if (end.wholeBytes > 0) return env.truncate(path, end.wholeBytes);
  PSD_RETURN_IF_ERROR(env.remove(path));
  return env.syncFolder(folder);
}

Result<uint64_t> highestSegment(Env& env, const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> segments, listSegments(env, folder));
  return segments.empty() ? 0 : segments.back();
}

Result<LogFiles> findLog(Env& env, const std::string& folder) {
  LogFiles found;
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(folder));
  if (!there) return found;
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> segments, listSegments(env, folder));
  found.segments = segments.size();
  for (uint64_t segment : segments) {
    const std::string path = segmentPath(folder, segment);
    PSD_ASSIGN_OR_RETURN(const auto file, env.open(path));
    if (file->size() > kSegmentHeaderBytes) {
      found.updatesIn = path;
      break;
    }
  }
  return found;
}

}  // namespace psd
