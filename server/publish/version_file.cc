#include "server/publish/version_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "common/checksum/crc32c.h"
#include "common/config/json_file.h"
#include "common/safetensors/safetensors.h"

namespace psd {
namespace {

constexpr std::string_view kPrefix = "version-", kSuffix = ".safetensors";
constexpr std::string_view kMoments[] = {"live", "snapshot", "round"};
constexpr uint64_t kHeaderBytesMax = 100u << 20;  // of the safetensors format

std::string head(const VersionInfo& info, const ModelSpec& model, const std::string& checksums) {
  SafetensorsHead head;
  head.addMetadata({{"psd.version", std::to_string(info.number)},
                    {"psd.history", fmt::format("{:016x}", info.history)},
                    {"psd.updates", std::to_string(info.updates)},
                    {"psd.created", info.created},
                    {"psd.moment", std::string(momentName(info.moment))},
                    {"psd.crc32c", checksums}});
  head.add(model);
  return head.text();
}

uint64_t valueBytes(const ModelSpec& model) {
  uint64_t sum = 0;
  for (const TensorSpec& tensor : model.tensors) sum += tensor.elementCount() * dtypeBytes(tensor.dtype);
  return sum;
}

std::string checksumsOf(const VersionContent& content) {
  std::string text;
  uint64_t at = 0;
  for (const TensorSpec& tensor : content.model.tensors) {
    const uint64_t bytes = tensor.elementCount() * dtypeBytes(tensor.dtype);
    if (!text.empty()) text += ' ';
    text += crcText(crc32c(content.values.subspan(at, bytes)));
    at += bytes;
  }
  return text;
}

std::optional<uint64_t> numberIn(std::string_view text, int base = 10) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

/// Reads the metadata of writeVersion() from a header; the error does not name the file.
Result<VersionInfo> readInfo(const std::string& header, uint64_t dataBytes) {
  const auto bad = [](const std::string& why) { return Error{ErrorCode::io, "its header " + why}; };
  PSD_ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> entries,
                       parseSafetensorsHeader(header, dataBytes));
  if (!entries.empty() && entries.back().end != dataBytes) return bad("does not fit its size");
  const auto json = parseJson(header, "its header");
  if (!json.ok()) return bad("is not JSON");
  const auto metadata = json->find("__metadata__");
  const auto text = [&](const char* key) {
    if (metadata == json->end() || !metadata->is_object()) return std::string();
    const auto found = metadata->find(key);
    return found != metadata->end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto number = numberIn(text("psd.version")), updates = numberIn(text("psd.updates")),
             history = numberIn(text("psd.history"), 16);
  if (!number || !updates || !history) return bad("is not that of a version");
  return VersionInfo{*number, *history, *updates, text("psd.created"), momentNamed(text("psd.moment")), 0};
}

}  // namespace

Moment momentNamed(std::string_view name) {
  const auto* const named = std::ranges::find(kMoments, name);
  return named == std::end(kMoments) ? Moment::live : static_cast<Moment>(named - kMoments);
}

std::string_view momentName(Moment moment) { return kMoments[static_cast<size_t>(moment)]; }

std::string versionPath(const std::string& folder, uint64_t number) {
  return fmt::format("{}/{}{:010}{}", folder, kPrefix, number, kSuffix);
}

uint64_t versionBytes(const VersionInfo& info, const ModelSpec& model) {
  constexpr size_t kCrcChars = 9;  // with the space
  const std::string checksums(model.tensors.empty() ? 0 : model.tensors.size() * kCrcChars - 1, '0');
  return head(info, model, checksums).size() + valueBytes(model);
}

Result<uint64_t> writeVersion(Env& env, const std::string& folder, const VersionInfo& info,
                              const VersionContent& content) {
  const std::string path = versionPath(folder, info.number);
  const std::string start = head(info, content.model, checksumsOf(content));
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

Result<OpenVersion> openVersion(Env& env, const std::string& folder, uint64_t number) {
  const std::string path = versionPath(folder, number);
  const auto bad = [&path](const std::string& why) {
    return Error{ErrorCode::io, "'" + path + "' is not a version: " + why};
  };
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<ReadableFile> file, env.open(path));
  uint64_t headerBytes = 0;
  if (file->size() < sizeof headerBytes) return bad("it is shorter than 8 bytes");
  PSD_RETURN_IF_ERROR(file->read(0, std::as_writable_bytes(std::span(&headerBytes, 1))));
  if (headerBytes > kHeaderBytesMax || headerBytes > file->size() - sizeof headerBytes) {
    return bad("its header length does not fit the file");
  }
  std::string header(headerBytes, '\0');
  PSD_RETURN_IF_ERROR(file->read(sizeof headerBytes, std::as_writable_bytes(std::span(header))));
  auto info = readInfo(header, file->size() - sizeof headerBytes - headerBytes);
  if (!info.ok()) return bad(info.message());
  if (info->number != number) return bad("it says that it is version " + std::to_string(info->number));
  info->bytes = file->size();
  return OpenVersion{*std::move(info), std::move(file)};
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
    if (const auto number = numberIn(rest)) numbers.push_back(*number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

}  // namespace psd
