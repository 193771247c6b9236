#include "server/checkpoint/log_reader.h"

#include <algorithm>

namespace psd {
namespace {

Result<std::vector<uint64_t>> listSegments(Env& env, const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.list(folder));
  std::vector<uint64_t> segments;
  for (const std::string& name : names) {
    if (auto segment = segmentOf(name)) segments.push_back(*segment);
  }
  std::sort(segments.begin(), segments.end());
  return segments;
}

Error damaged(const std::string& path, const std::string& why) {
  return {ErrorCode::io, "'" + path + "' is damaged: " + why +
                             "; a checkpoint can be gone on from without the log: durability.resume=PATH"};
}

}  // namespace

Result<SegmentContent> readSegment(Env& env, const std::string& path, const RecordVisitor& visit) {
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, env.open(path));
  SegmentContent content;
  content.fileBytes = file->size();
  std::vector<std::byte> bytes(std::min(file->size(), kSegmentHeaderBytes));
  PSD_RETURN_IF_ERROR(file->read(0, bytes));
  content.header = parseSegmentHeader(bytes);
  if (!content.header) return content;
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
    if (!parsed.ok()) return Error{parsed.error().code, "'" + path + "': " + parsed.message()};
    if (!*parsed || (*parsed)->number != content.nextRecord) break;
    PSD_RETURN_IF_ERROR(visit(**parsed));
    content.wholeBytes += *length;
    content.nextRecord++;
  }
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
    // The header decides before the first record is looked at, so it is read twice.
    PSD_ASSIGN_OR_RETURN(const auto file, env.open(path));
    std::vector<std::byte> bytes(std::min(file->size(), kSegmentHeaderBytes));
    PSD_RETURN_IF_ERROR(file->read(0, bytes));
    const auto header = parseSegmentHeader(bytes);
    if (!header) {
      // One that could not be made, because of a crash or a full disk: nothing can have been in it.
      const bool last = segment == segments.back();
      if (!last && file->size() >= kSegmentHeaderBytes) return damaged(path, "its header is not whole");
      if (!last) continue;
      end.lastSegment = segment;
      end.torn = true;
      end.wholeBytes = 0;
      break;
    }
    if (header->history != history) continue;
    if (header->segment != segment) return damaged(path, "its header is that of another segment");
    if (end.lastSegment && header->firstRecord != expected) {
      return damaged(lastPath,
                     "record " + std::to_string(expected) + " is missing, which '" + path + "' goes on from");
    }
    PSD_ASSIGN_OR_RETURN(const SegmentContent content, readSegment(env, path, visit));
    end.lastSegment = segment;
    end.records += content.nextRecord - header->firstRecord;
    end.nextRecord = content.nextRecord;
    end.torn = content.wholeBytes != content.fileBytes;
    end.wholeBytes = content.wholeBytes;
    lastPath = path;
  }
  return end;
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

}  // namespace psd
