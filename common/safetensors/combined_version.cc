#include "common/safetensors/combined_version.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "common/checksum/crc32c.h"
#include "common/plan/model_partitions.h"
#include "common/text/text.h"
#include "common/types/split_mix.h"

namespace psd {
namespace {

/// Parts that make no model, also when they are read once more.
Error notOne(std::string why) { return {ErrorCode::invalidArgument, std::move(why)}; }

/// The tensors of a part, as those of a partition.
Result<ModelSpec> specOf(const VersionHeader& header) {
  ModelSpec part{.partition = {header.info.part, header.info.parts}};
  for (const SafetensorsEntry& entry : header.tensors) {
    std::string name = entry.dtype;
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto dtype = parseDType(name);
    if (!dtype.ok()) return notOne(fmt::format("tensor '{}' has a dtype of no model", printable(entry.name)));
    part.tensors.push_back({entry.name, *dtype, entry.shape});
  }
  return part;
}

/// Whether the dtypes of cut tensors are the same in all parts.
Status checkDtypes(const std::vector<ModelSpec>& parts, const ModelSpec& whole) {
  size_t at = 0;
  for (const ModelSpec& part : parts) {
    for (const TensorSpec& tensor : part.tensors) {
      while (at < whole.tensors.size() && whole.tensors[at].name != wholeName(tensor.name)) at++;
      if (at < whole.tensors.size() && whole.tensors[at].dtype == tensor.dtype) continue;
      return notOne(fmt::format("'{}' has different dtypes at the daemons: give all the same publish.as",
                                printable(std::string(wholeName(tensor.name)))));
    }
  }
  return {};
}

/// The CRC-32C of each tensor, whose bytes follow one another across the parts.
std::vector<uint32_t> checksumsOf(const std::vector<SafetensorsEntry>& tensors,
                                  const std::vector<std::span<const std::byte>>& values) {
  std::vector<uint32_t> checksums;
  size_t part = 0;
  uint64_t at = 0;  // in that part
  for (const SafetensorsEntry& tensor : tensors) {
    uint32_t checksum = 0;
    for (uint64_t left = tensor.end - tensor.begin; left > 0;) {
      if (at == values[part].size()) {
        part++;
        at = 0;
        continue;
      }
      const uint64_t count = std::min<uint64_t>(left, values[part].size() - at);
      checksum = crc32c(values[part].subspan(at, count), checksum);
      at += count;
      left -= count;
    }
    checksums.push_back(checksum);
  }
  return checksums;
}

std::string headOf(const VersionInfo& info, const std::vector<SafetensorsEntry>& tensors,
                   const std::vector<uint32_t>& checksums, const std::string& histories,
                   uint64_t leastBytes = 0) {
  auto metadata = versionMetadata(info, checksums);
  metadata[kPartsMetadata] = histories;
  SafetensorsHead head;
  head.addMetadata(metadata);
  for (const SafetensorsEntry& tensor : tensors) head.add(tensor);
  return head.text(leastBytes);
}

/// What a whole version has of its parts.
VersionInfo wholeOf(std::span<const VersionInfo> parts) {
  VersionInfo whole = parts.front();
  whole.bytes = 0;
  for (const VersionInfo& part : parts) {
    whole.step = std::min(whole.step, part.step);
    whole.created = std::max(whole.created, part.created);
    whole.bytes += part.bytes;
  }
  whole.history = wholeHistory(parts);
  whole.shardVersions.clear();
  whole.part = whole.parts = 0;
  whole.momentId = 0;
  whole.wholeHistory = 0;
  return whole;
}

bool isSameTensor(const SafetensorsEntry& one, const SafetensorsEntry& other) {
  return one.name == other.name && one.dtype == other.dtype && one.shape == other.shape &&
         one.begin == other.begin && one.end == other.end;
}

/// What the header of the file says whose parts have these tensors.
Result<VersionInfo> infoBefore(std::string_view text, uint64_t bytes, const VersionInfo& whole,
                               const std::vector<SafetensorsEntry>& tensors,
                               const std::vector<uint32_t>& checksums) {
  const auto damaged = [&](const std::string& why) {
    return Error{
        ErrorCode::io,
        fmt::format("psd.whole of version {}, the header of the version before it was cut, is damaged: {}",
                    whole.number, why)};
  };
  const auto header = parseVersionHeader(text, sizeof(uint64_t) + text.size() + bytes);
  if (!header.ok()) return damaged(header.message());
  if (header->info.number != whole.number || header->info.history != whole.history ||
      header->info.parts > 0) {
    return damaged("it is of another version");
  }
  if (!std::ranges::equal(header->tensors, tensors, isSameTensor)) return damaged("it has other tensors");
  if (header->checksums != checksums) return damaged("it has other checksums");
  VersionInfo info = header->info;
  info.shardVersions.clear();
  return info;
}

/// The length and the JSON of a header.
std::string headWith(std::string_view json) {
  const uint64_t bytes = json.size();
  std::string head(sizeof bytes, '\0');
  std::memcpy(head.data(), &bytes, sizeof bytes);
  return head.append(json);
}

/// The number that the parts of a whole version have in common.
uint64_t momentIdOf(const VersionInfo& whole) {
  return std::max<uint64_t>(splitMix(whole.history ^ splitMix(whole.number)), 1);
}

/// The tensors of a part, with the dtypes that they have in the version.
Result<std::vector<SafetensorsEntry>> partEntries(const ModelSpec& part,
                                                  const std::vector<SafetensorsEntry>& whole) {
  std::vector<SafetensorsEntry> entries;
  uint64_t end = 0;
  size_t at = 0;
  for (const TensorSpec& tensor : part.tensors) {
    while (at < whole.size() && whole[at].name != wholeName(tensor.name)) at++;
    const uint64_t each = at < whole.size() ? safetensorsElementBytes(whole[at].dtype) : 0;
    if (each == 0) return notOne(fmt::format("tensor '{}' cannot be divided", printable(tensor.name)));
    const uint64_t begin = end;
    end += tensor.elementCount() * each;
    entries.push_back({tensor.name, whole[at].dtype, tensor.shape, begin, end});
  }
  return entries;
}

/// Whether the version has the tensors of the model; their dtypes may differ.
bool isOf(const ModelSpec& model, const std::vector<SafetensorsEntry>& version) {
  return std::ranges::equal(
      version, model.tensors, [](const SafetensorsEntry& entry, const TensorSpec& tensor) {
        return entry.name == tensor.name && std::ranges::equal(entry.shape, tensor.shape);
      });
}

}  // namespace

uint64_t combinedHistory(std::span<const uint64_t> histories) {
  uint64_t combined = histories.size();
  for (const uint64_t history : histories) combined = splitMix(combined ^ history);
  return std::max<uint64_t>(combined, 1);
}

uint64_t wholeHistory(std::span<const VersionInfo> parts) {
  const uint64_t kept = parts.front().wholeHistory;
  const auto hasKept = [&](const VersionInfo& part) { return part.wholeHistory == kept; };
  if (kept != 0 && std::ranges::all_of(parts, hasKept)) return kept;
  std::vector<uint64_t> histories;
  for (const VersionInfo& part : parts) histories.push_back(part.history);
  return combinedHistory(histories);
}

std::vector<VersionInfo> commonVersions(std::span<const std::vector<VersionInfo>> lists) {
  std::map<std::pair<uint64_t, uint64_t>, std::vector<VersionInfo>> found;  // by number and moment
  for (uint32_t i = 0; i < lists.size(); i++) {
    for (const VersionInfo& version : lists[i]) {
      if (version.part != i || version.parts != lists.size()) continue;
      std::vector<VersionInfo>& parts = found[{version.number, version.momentId}];
      if (parts.size() == i) parts.push_back(version);
    }
  }
  std::vector<VersionInfo> whole;
  for (const auto& [key, parts] : found) {
    if (parts.size() == lists.size()) whole.push_back(wholeOf(parts));
  }
  return whole;
}

uint64_t newestNumber(const std::vector<VersionInfo>& versions) {
  return versions.empty() ? 0 : versions.back().number;
}

size_t lastDaemon(std::span<const std::vector<VersionInfo>> lists) {
  return static_cast<size_t>(std::ranges::min_element(lists, {}, newestNumber) - lists.begin());
}

Error noCommonVersion(std::span<const std::vector<VersionInfo>> lists, uint64_t number) {
  const std::string newest = joined(lists, ", ", [](const auto& versions) {
    return versions.empty() ? "none" : std::to_string(newestNumber(versions));
  });
  const std::string what = number == 0 ? "no version is published by all daemons yet"
                                       : fmt::format("not all daemons have version {} of one moment", number);
  return {ErrorCode::notReady, what + "; the newest of each: " + newest};
}

Result<WholeVersion> WholeVersion::join(std::vector<std::span<const std::byte>> files) {
  std::vector<VersionInfo> infos;
  std::vector<ModelSpec> specs;
  std::vector<std::string> before;  // the headers of the file that the parts were cut of
  WholeVersion whole;
  for (const std::span<const std::byte> file : files) {
    PSD_ASSIGN_OR_RETURN(const std::string_view text, versionHeaderText(file));
    PSD_ASSIGN_OR_RETURN(VersionHeader header, parseVersionHeader(text, file.size()));
    infos.push_back(header.info);
    const VersionInfo &first = infos.front(), &info = infos.back();
    if (info.part + 1 != infos.size() || info.parts != files.size() || info.number != first.number ||
        info.momentId != first.momentId) {
      return Error{ErrorCode::modelMismatch,
                   fmt::format("part {} of version {} is not of the same moment as the others", info.part,
                               info.number)};
    }
    PSD_ASSIGN_OR_RETURN(specs.emplace_back(), specOf(header));
    before.push_back(std::move(header.whole));
    whole.values_.push_back(file.subspan(header.dataBegin));
  }
  const auto model = joinPartitions(specs);
  if (!model.ok()) {
    return notOne(fmt::format("the parts of version {} are not those of one model: {}", infos.front().number,
                              model.message()));
  }
  PSD_RETURN_IF_ERROR(checkDtypes(specs, *model));
  PSD_RETURN_IF_ERROR(whole.describe(infos, safetensorsEntries(*model), before));
  return whole;
}

Status WholeVersion::describe(const std::vector<VersionInfo>& parts,
                              const std::vector<SafetensorsEntry>& tensors,
                              const std::vector<std::string>& before) {
  info_ = wholeOf(parts);
  uint64_t bytes = 0;
  for (const auto& values : values_) bytes += values.size();
  if (bytes != (tensors.empty() ? 0 : tensors.back().end)) {
    return notOne(
        fmt::format("the parts of version {} do not have the bytes of their tensors", info_.number));
  }
  const std::vector<uint32_t> checksums = checksumsOf(tensors, values_);
  if (std::ranges::any_of(before, [&](const std::string& each) { return each != before.front(); })) {
    return {ErrorCode::io,
            fmt::format("the parts of version {} name different headers before they were cut (psd.whole)",
                        info_.number)};
  }
  if (!before.front().empty()) {
    PSD_ASSIGN_OR_RETURN(info_, infoBefore(before.front(), bytes, info_, tensors, checksums));
    head_ = headWith(before.front());
    return {};
  }
  const std::string histories =
      joined(parts, " ", [](const VersionInfo& info) { return fmt::format("{:016x}", info.history); });
  // All versions of a model have their tensors at the same places.
  const size_t headBytes = headOf(longestVersion(), tensors, checksums, histories).size();
  head_ = headOf(info_, tensors, checksums, histories, headBytes);
  info_.bytes = head_.size() + bytes;
  return {};
}

void WholeVersion::writeTo(std::span<std::byte> file) const {
  std::memcpy(file.data(), head_.data(), head_.size());
  size_t at = head_.size();
  for (const auto& values : values_) {
    if (!values.empty()) std::memcpy(file.data() + at, values.data(), values.size());
    at += values.size();
  }
}

uint64_t partHistory(uint64_t history, uint32_t part, uint64_t seed) {
  return std::max<uint64_t>(splitMix(splitMix(history ^ seed) ^ (uint64_t{part} + 1)), 1);
}

Result<SplitVersion> SplitVersion::split(std::span<const std::byte> file,
                                         const std::vector<ModelSpec>& partitions, uint64_t seed) {
  PSD_ASSIGN_OR_RETURN(const std::string_view text, versionHeaderText(file));
  PSD_ASSIGN_OR_RETURN(const VersionHeader header, parseVersionHeader(text, file.size()));
  PSD_ASSIGN_OR_RETURN(const ModelSpec model, joinPartitions(partitions));
  if (header.info.parts > 0 || !isOf(model, header.tensors)) {
    return Error{ErrorCode::modelMismatch,
                 fmt::format("version {} does not have the tensors of the model", header.info.number)};
  }
  SplitVersion out;
  std::span<const std::byte> left = file.subspan(header.dataBegin);
  for (uint32_t i = 0; i < partitions.size(); i++) {
    PSD_ASSIGN_OR_RETURN(const auto tensors, partEntries(partitions[i], header.tensors));
    const uint64_t bytes = tensors.empty() ? 0 : tensors.back().end;
    if (bytes > left.size()) return notOne("the parts of a version are larger than the whole");
    Part& part = out.parts_.emplace_back();
    part.values = left.first(bytes);
    left = left.subspan(bytes);
    VersionInfo info = header.info;
    info.shardVersions.clear();
    info.history = partHistory(header.info.history, i, seed);
    info.wholeHistory = header.info.history;
    info.part = i;
    info.parts = static_cast<uint32_t>(partitions.size());
    info.momentId = momentIdOf(header.info);
    auto metadata = versionMetadata(info, checksumsOf(tensors, {part.values}));
    metadata[kWholeMetadata] = text;
    SafetensorsHead head;
    head.addMetadata(metadata);
    for (const SafetensorsEntry& tensor : tensors) head.add(tensor);
    part.head = head.text();
  }
  return out;
}

}  // namespace psd
