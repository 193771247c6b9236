#include "common/safetensors/published_version.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/checksum/crc32c.h"
#include "common/config/json_file.h"
#include "common/text/number.h"
#include "common/text/text.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

Error damaged(std::string why) { return {ErrorCode::io, std::move(why)}; }

template <class Number>
std::optional<Number> hexadecimal(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

/// Eight hexadecimal digits each, separated by spaces.
std::optional<std::vector<uint32_t>> checksumsIn(std::string_view text) {
  std::vector<uint32_t> checksums;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, std::min(text.find(' '), text.size()));
    const auto checksum = hexadecimal<uint32_t>(one);
    if (!checksum || one.size() != 8) return {};
    checksums.push_back(*checksum);
    text.remove_prefix(std::min(one.size() + 1, text.size()));
  }
  return checksums;
}

/// Numbers, separated by spaces.
std::optional<std::vector<uint64_t>> numbersIn(std::string_view text) {
  std::vector<uint64_t> numbers;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, std::min(text.find(' '), text.size()));
    const auto number = toNumber<uint64_t>(one);
    if (!number) return {};
    numbers.push_back(*number);
    text.remove_prefix(std::min(one.size() + 1, text.size()));
  }
  return numbers;
}

/// "0/2": the part and their number.
std::optional<std::pair<uint32_t, uint32_t>> placeIn(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return {};
  const auto part = toNumber<uint32_t>(text.substr(0, slash)),
             parts = toNumber<uint32_t>(text.substr(slash + 1));
  if (!part || !parts || *part >= *parts) return {};
  return std::pair(*part, *parts);
}

}  // namespace

bool isVersionDtype(std::string_view dtype) {
  return std::ranges::find(kVersionDtypes, dtype) != std::end(kVersionDtypes);
}

std::map<std::string, std::string> versionMetadata(const VersionInfo& info,
                                                   std::span<const uint32_t> checksums) {
  std::map<std::string, std::string> metadata = {
      {"psd.version", std::to_string(info.number)},
      {"psd.history", fmt::format("{:016x}", info.history)},
      {"psd.step", std::to_string(info.step)},
      {"psd.created", info.created},
      {"psd.moment", std::string(momentName(info.moment))},
      {"psd.crc32c", joined(checksums, " ", [](uint32_t checksum) { return crcText(checksum); })}};
  if (!info.shardVersions.empty()) {
    metadata["psd.shard_versions"] =
        joined(info.shardVersions, " ", [](uint64_t version) { return std::to_string(version); });
  }
  if (info.parts > 0) {
    metadata[kPartMetadata] = fmt::format("{}/{}", info.part, info.parts);
    metadata[kMomentIdMetadata] = fmt::format("{:016x}", info.momentId);
    if (info.wholeHistory != 0) metadata[kWholeHistoryMetadata] = fmt::format("{:016x}", info.wholeHistory);
  }
  return metadata;
}

VersionInfo longestVersion() {
  return {.number = UINT64_MAX,
          .step = UINT64_MAX,
          .created = "2026-11-29T12:00:00Z",
          .moment = VersionMoment::snapshot};
}

Result<VersionHeader> parseVersionHeader(std::string_view text, uint64_t fileBytes) {
  VersionHeader header;
  header.dataBegin = sizeof(uint64_t) + text.size();
  if (header.dataBegin > fileBytes) return damaged("the header does not match the size of the file");
  const uint64_t dataBytes = fileBytes - header.dataBegin;
  PSD_ASSIGN_OR_RETURN(header.tensors, parseSafetensorsHeader(text, dataBytes));
  uint64_t end = 0;
  for (const SafetensorsEntry& tensor : header.tensors) {
    if (tensor.begin != end) {
      return damaged("tensor '" + printable(tensor.name) + "' does not follow the tensor before it");
    }
    end = tensor.end;
  }
  if (end != dataBytes) return damaged("bytes follow its last tensor");
  const auto json = parseJson(text, "its header");
  if (!json.ok()) return damaged("its header is not JSON");
  const auto metadata = json->find("__metadata__");
  const auto valueOf = [&](const char* key) {
    if (metadata == json->end() || !metadata->is_object()) return std::string();
    const auto found = metadata->find(key);
    return found != metadata->end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto number = toNumber<uint64_t>(valueOf("psd.version")),
             step = toNumber<uint64_t>(valueOf("psd.step")),
             history = hexadecimal<uint64_t>(valueOf("psd.history"));
  auto checksums = checksumsIn(valueOf("psd.crc32c"));
  if (!number || !step || !history) {
    return damaged("its header has no psd.version, psd.history and psd.step, which every version has");
  }
  if (!checksums || checksums->size() != header.tensors.size()) {
    return damaged("its header does not have one checksum for each tensor");
  }
  header.info = {.number = *number,
                 .history = *history,
                 .step = *step,
                 .created = printable(valueOf("psd.created"), 40),
                 .moment = momentNamed(valueOf("psd.moment")),
                 .bytes = fileBytes};
  if (const std::string part = valueOf(kPartMetadata); !part.empty()) {
    const auto place = placeIn(part);
    const auto momentId = hexadecimal<uint64_t>(valueOf(kMomentIdMetadata));
    if (!place || !momentId) return damaged("its psd.part and psd.moment_id do not say which part it is");
    std::tie(header.info.part, header.info.parts) = *place;
    header.info.momentId = *momentId;
    if (const std::string history = valueOf(kWholeHistoryMetadata); !history.empty()) {
      const auto whole = hexadecimal<uint64_t>(history);
      if (!whole) return damaged("its psd.whole_history is no history");
      header.info.wholeHistory = *whole;
    }
    header.whole = valueOf(kWholeMetadata);
  }
  auto shardVersions = numbersIn(valueOf("psd.shard_versions"));
  if (!shardVersions) return damaged("its psd.shard_versions are not numbers");
  header.info.shardVersions = *std::move(shardVersions);
  header.checksums = *std::move(checksums);
  header.map = printable(valueOf(kMapMetadata), 40);
  return header;
}

Status checkVersionHeaderBytes(uint64_t headerBytes, uint64_t fileBytes) {
  if (headerBytes > fileBytes - std::min<uint64_t>(fileBytes, sizeof headerBytes)) {
    return damaged("its header length does not fit its size");
  }
  if (headerBytes <= kVersionHeaderBytesMax) return {};
  return damaged(
      fmt::format("its header has {} bytes; the limit is {}", headerBytes, kVersionHeaderBytesMax));
}

Result<std::string_view> versionHeaderText(std::span<const std::byte> file) {
  uint64_t headerBytes = 0;
  if (file.size() < sizeof headerBytes) return damaged("it is shorter than 8 bytes");
  std::memcpy(&headerBytes, file.data(), sizeof headerBytes);
  PSD_RETURN_IF_ERROR(checkVersionHeaderBytes(headerBytes, file.size()));
  return std::string_view(reinterpret_cast<const char*>(file.data()) + sizeof headerBytes, headerBytes);
}

std::string wrongChecksum(const SafetensorsEntry& tensor, uint32_t found, uint32_t expected) {
  return fmt::format("the checksum of tensor '{}' is {}; its header says {}", printable(tensor.name),
                     crcText(found), crcText(expected));
}

namespace {

/// Verifies the tensors of a file.
Result<VersionHeader> verifyTensors(std::span<const std::byte> file, VersionHeader header) {
  const std::span<const std::byte> data = file.subspan(header.dataBegin);
  for (size_t i = 0; i < header.tensors.size(); i++) {
    const SafetensorsEntry& tensor = header.tensors[i];
    const uint32_t found = crc32c(data.subspan(tensor.begin, tensor.end - tensor.begin));
    if (found == header.checksums[i]) continue;
    return damaged(wrongChecksum(tensor, found, header.checksums[i]));
  }
  return header;
}

}  // namespace

Result<VersionHeader> verifyVersion(std::span<const std::byte> file) {
  PSD_ASSIGN_OR_RETURN(const std::string_view text, versionHeaderText(file));
  PSD_ASSIGN_OR_RETURN(VersionHeader header, parseVersionHeader(text, file.size()));
  return verifyTensors(file, std::move(header));
}

Result<VersionHeader> verifyVersion(std::span<const std::byte> file, uint64_t number, uint64_t history) {
  PSD_ASSIGN_OR_RETURN(const std::string_view text, versionHeaderText(file));
  PSD_ASSIGN_OR_RETURN(VersionHeader header, parseVersionHeader(text, file.size()));
  if (header.info.number != number) {
    return damaged(fmt::format("it says that it is version {}", header.info.number));
  }
  if (header.info.history != history) {
    return damaged(
        fmt::format("it says that its history is {:016x}, not {:016x}", header.info.history, history));
  }
  return verifyTensors(file, std::move(header));
}

}  // namespace psd
