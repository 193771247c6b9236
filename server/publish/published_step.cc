#include "server/publish/published_step.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <string_view>

#include <spdlog/fmt/fmt.h>

#include "common/checksum/crc32c.h"

namespace psd {
namespace {

constexpr uint64_t kReadBytes = 1u << 20;

/// Reads pieces of a version's file in ascending order, through a window.
class WindowedReader {
 public:
  WindowedReader(VersionStore& versions, const VersionInfo& version)
      : versions_(versions), version_(version) {}

  /// Up to `count` bytes from `offset` on; valid until the next call.
  Result<std::span<const std::byte>> at(uint64_t offset, uint64_t count) {
    if (offset < begin_ || offset >= begin_ + size_) {
      begin_ = offset;
      size_ = std::min(kReadBytes, version_.bytes - offset);
      PSD_ASSIGN_OR_RETURN(bytes_, versions_.read(version_.number, begin_, size_));
    }
    const uint64_t skipped = offset - begin_;
    return std::span<const std::byte>(bytes_).subspan(skipped, std::min(count, size_ - skipped));
  }

 private:
  VersionStore& versions_;
  const VersionInfo& version_;
  std::vector<std::byte> bytes_;
  uint64_t begin_ = 0, size_ = 0;
};

Result<VersionHeader> headerOf(VersionStore& versions, const VersionInfo& version) {
  uint64_t size = 0;
  PSD_ASSIGN_OR_RETURN(const std::vector<std::byte> head, versions.read(version.number, 0, sizeof size));
  std::memcpy(&size, head.data(), sizeof size);
  PSD_ASSIGN_OR_RETURN(const std::vector<std::byte> text, versions.read(version.number, sizeof size, size));
  return parseVersionHeader({reinterpret_cast<const char*>(text.data()), size}, version.bytes);
}

/// The checksum of the bytes of a box; `begin`: place of its tensor in the file.
Result<uint32_t> checksumOf(WindowedReader& file, const VersionPart& part, uint64_t begin) {
  uint32_t checksum = 0;
  if (part.bytes() == 0) return checksum;
  Status outcome;
  BoxRuns(part).visit(0, part.bytes(), [&](uint64_t place, uint64_t, uint64_t bytes) {
    while (outcome.ok() && bytes > 0) {
      const auto read = file.at(begin + place, bytes);
      if (!read.ok()) {
        outcome = read.error();
        return;
      }
      checksum = crc32c(*read, checksum);
      place += read->size();
      bytes -= read->size();
    }
  });
  if (!outcome.ok()) return outcome.error();
  return checksum;
}

}  // namespace

Status checkPublished(VersionStore& versions, const VersionInfo& version,
                      const std::vector<VersionPart>& parts) {
  PSD_ASSIGN_OR_RETURN(const VersionHeader header, headerOf(versions, version));
  std::map<std::string_view, size_t> places;
  for (size_t i = 0; i < header.tensors.size(); i++) places[header.tensors[i].name] = i;
  const auto differs = [&](const std::string& what) {
    return Status(ErrorCode::invalidArgument,
                  fmt::format("step {} is published already, as version {} with {}: a step has one version",
                              version.step, version.number, what));
  };
  WindowedReader file(versions, version);
  for (const VersionPart& part : parts) {
    const auto place = places.find(part.name);
    if (place == places.end()) return differs("no tensor '" + part.name + "'");
    const SafetensorsEntry& tensor = header.tensors[place->second];
    if (tensor.dtype != part.dtype || tensor.shape != part.shape)
      return differs("tensor " + tensor.toString());
    uint32_t checksum = header.checksums[place->second];
    if (part.extent != part.shape) {
      PSD_ASSIGN_OR_RETURN(checksum, checksumOf(file, part, header.dataBegin + tensor.begin));
    }
    if (checksum != part.checksum)
      return differs("other bytes of tensor '" + part.name + "' " + part.boxText());
  }
  return {};
}

}  // namespace psd
