#include "server/publish/version_file.h"

#include <algorithm>
#include <new>
#include <optional>
#include <string_view>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/checksum/crc32c.h"
#include "common/text/number.h"

namespace psd {
namespace {

constexpr std::string_view kPrefix = "version-", kSuffix = ".safetensors";

std::string head(const VersionInfo& info, std::span<const SafetensorsEntry> tensors,
                 std::span<const uint32_t> checksums, uint64_t leastBytes = 0) {
  SafetensorsHead head;
  head.addMetadata(versionMetadata(info, checksums));
  for (const SafetensorsEntry& tensor : tensors) head.add(tensor);
  return head.text(leastBytes);
}

Error notVersion(const std::string& path, const std::string& why) {
  return {ErrorCode::io, "'" + path + "' is not a version: " + why};
}

Result<std::string> readText(const ReadableFile& file, const std::string& path) {
  uint64_t headerBytes = 0;
  if (file.size() < sizeof headerBytes) return notVersion(path, "it is shorter than 8 bytes");
  PSD_RETURN_IF_ERROR(file.read(0, std::as_writable_bytes(std::span(&headerBytes, 1))));
  if (const Status fits = checkVersionHeaderBytes(headerBytes, file.size()); !fits.ok()) {
    return notVersion(path, fits.message());
  }
  std::string text(headerBytes, '\0');
  PSD_RETURN_IF_ERROR(file.read(sizeof headerBytes, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<VersionHeader> readHeader(const ReadableFile& file, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::string text, readText(file, path));
  auto header = parseVersionHeader(text, file.size());
  if (!header.ok()) return notVersion(path, header.message());
  return header;
}

}  // namespace

std::string versionPath(const std::string& folder, uint64_t number) {
  return fmt::format("{}/{}{:010}{}", folder, kPrefix, number, kSuffix);
}

std::vector<uint32_t> checksumsOf(const VersionContent& content) {
  std::vector<uint32_t> checksums;
  for (size_t i = 0; i < content.tensors.size(); i++) {
    const SafetensorsEntry& tensor = content.tensors[i];
    const auto known = i < content.checksums.size() ? content.checksums[i] : std::nullopt;
    checksums.push_back(known ? *known
                              : crc32c(content.values.subspan(tensor.begin, tensor.end - tensor.begin)));
  }
  return checksums;
}

uint64_t versionBytes(std::span<const SafetensorsEntry> tensors, size_t shards, uint32_t parts) {
  return versionHeadBytes(tensors, shards, parts) + (tensors.empty() ? 0 : tensors.back().end);
}

/// All versions with these tensors have a head of this size, so that their tensors lie at the same places.
uint64_t versionHeadBytes(std::span<const SafetensorsEntry> tensors, size_t shards, uint32_t parts) {
  VersionInfo longest = longestVersion();
  longest.shardVersions.assign(shards, UINT64_MAX);
  longest.part = longest.parts = parts;
  longest.wholeHistory = UINT64_MAX;  // of parts
  return head(longest, tensors, std::vector<uint32_t>(tensors.size())).size();
}

Result<uint64_t> writeVersion(Env& env, const std::string& folder, const VersionInfo& info,
                              const VersionContent& content) {
  const std::string path = versionPath(folder, info.number);
  PSD_ASSIGN_OR_RETURN(const bool exists, env.exists(path));
  if (exists) return Error{ErrorCode::io, "'" + path + "' exists already: another program has written it"};
  const std::string start = head(info, content.tensors, checksumsOf(content),
                                 versionHeadBytes(content.tensors, info.shardVersions.size(), info.parts));
  const Status written = writeFileAtomically(env, path, [&](WritableFile& file) -> Status {
    PSD_RETURN_IF_ERROR(file.append(std::as_bytes(std::span(start))));
    return file.append(content.values);
  });
  if (!written.ok()) {
    static_cast<void>(env.remove(path));  // it may be in place, and not durable
    return written.error();
  }
  return start.size() + content.values.size();
}

Status writeVersionFile(Env& env, const std::string& folder, uint64_t number,
                        std::span<const std::byte> file) {
  const std::string path = versionPath(folder, number);
  const Status written = writeFileAtomically(env, path, [&](WritableFile& out) { return out.append(file); });
  if (!written.ok()) static_cast<void>(env.remove(path));  // it may be in place, and not durable
  return written;
}

Status copyVersionFile(const ReadableFile& file, Env& to, const std::string& path) {
  constexpr uint64_t kPieceBytes = 1u << 20;
  PSD_ASSIGN_OR_RETURN(const auto out, to.create(path));
  std::vector<std::byte> piece;
  for (uint64_t at = 0; at < file.size(); at += piece.size()) {
    piece.resize(std::min(kPieceBytes, file.size() - at));
    PSD_RETURN_IF_ERROR(file.read(at, piece));
    PSD_RETURN_IF_ERROR(out->append(piece));
  }
  return out->close();
}

Result<VersionHeader> verifyVersionFile(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<ReadableFile> file, env.open(path));
  return verifyVersionFile(*file, path);
}

Result<VersionHeader> verifyVersionFile(const ReadableFile& file, const std::string& path) {
  constexpr uint64_t kPieceBytes = 1u << 20;
  PSD_ASSIGN_OR_RETURN(VersionHeader header, readHeader(file, path));
  std::vector<std::byte> piece;
  for (size_t i = 0; i < header.tensors.size(); i++) {
    const SafetensorsEntry& tensor = header.tensors[i];
    uint32_t found = 0;
    for (uint64_t at = tensor.begin; at < tensor.end; at += piece.size()) {
      piece.resize(std::min(kPieceBytes, tensor.end - at));
      PSD_RETURN_IF_ERROR(file.read(header.dataBegin + at, piece));
      found = crc32c(piece, found);
    }
    if (found == header.checksums[i]) continue;
    return Error{ErrorCode::io,
                 "'" + path + "' is damaged: " + wrongChecksum(tensor, found, header.checksums[i])};
  }
  return header;
}

Result<std::string> readVersionHeaderText(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const auto file, env.open(path));
  return readText(*file, path);
}

Result<VersionHeader> readVersionHeader(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<ReadableFile> file, env.open(path));
  return readHeader(*file, path);
}

void removeUnfinishedVersions(Env& env, const std::string& folder, std::string_view name) {
  constexpr std::string_view kMark = ".tmp.";  // of writeFileAtomically(), with the process's number
  const auto names = env.list(folder);
  if (!names.ok()) return;
  for (const std::string& found : *names) {
    const size_t mark = found.rfind(kMark);
    if (mark == std::string::npos || !toNumber<uint64_t>(std::string_view(found).substr(mark + kMark.size())))
      continue;
    const std::string_view of = std::string_view(found).substr(0, mark);
    const bool ours = name.empty()
                          ? of.starts_with(kPrefix) || of.starts_with("patch-") || of == "versions.json"
                          : of == name;
    if (ours) static_cast<void>(env.remove(folder + "/" + found));
  }
}

Result<std::vector<uint64_t>> listVersions(Env& env, const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(const bool exists, env.exists(folder));
  std::vector<uint64_t> numbers;
  if (!exists) return numbers;
  PSD_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.list(folder));
  for (const std::string& name : names) {
    std::string_view rest = name;
    if (!rest.starts_with(kPrefix) || !rest.ends_with(kSuffix)) continue;
    rest.remove_prefix(kPrefix.size());
    rest.remove_suffix(kSuffix.size());
    const auto number = toNumber<uint64_t>(rest);
    if (number && *number <= kVersionNumberMax && versionPath(folder, *number) == folder + "/" + name) {
      numbers.push_back(*number);
    } else {
      spdlog::warn("'{}/{}' is not a version of a daemon, and is ignored", folder, name);
    }
  }
  std::ranges::sort(numbers);
  return numbers;
}

}  // namespace psd
