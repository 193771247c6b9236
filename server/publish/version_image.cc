#include "server/publish/version_image.h"

#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "common/checksum/crc32c.h"
#include "common/safetensors/published_version.h"

namespace psd {
namespace {

std::string mappedHead(const VersionInfo& info, const std::vector<MappedTensor>& tensors,
                       std::span<const uint32_t> checksums, const std::string& map, uint64_t leastBytes = 0) {
  auto metadata = versionMetadata(info, checksums);
  metadata[kMapMetadata] = map;
  SafetensorsHead head;
  head.addMetadata(metadata);
  for (const MappedTensor& tensor : tensors) {
    head.add(tensor.entry.name, tensor.entry.dtype, tensor.entry.shape,
             tensor.entry.end - tensor.entry.begin);
  }
  return head.text(leastBytes);
}

/// What mapping a version results in.
struct MappedFile {
  std::string head;
  std::vector<MappedTensor> tensors;
  std::span<const std::byte> data;  ///< of the version
};

}  // namespace

Result<VersionImage> versionImage(const VersionInfo& info, std::span<const std::byte> file,
                                  const TensorMap* map) {
  if (map == nullptr)
    return VersionImage{info, [file](const VersionImage::Sink& sink) { return sink(file); }};
  uint64_t headerBytes = 0;
  std::memcpy(&headerBytes, file.data(), sizeof headerBytes);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof headerBytes, headerBytes);
  PSD_ASSIGN_OR_RETURN(const VersionHeader header, parseVersionHeader(text, file.size()));
  auto mapped = std::make_shared<MappedFile>();
  mapped->data = file.subspan(header.dataBegin);
  PSD_ASSIGN_OR_RETURN(mapped->tensors, map->apply(header.tensors));
  std::vector<uint32_t> checksums;
  for (const MappedTensor& tensor : mapped->tensors) {
    uint32_t checksum = 0;
    PSD_RETURN_IF_ERROR(tensor.forEach(mapped->data, [&](std::span<const std::byte> bytes) {
      checksum = crc32c(bytes, checksum);
      return Status();
    }));
    checksums.push_back(checksum);
  }
  VersionInfo longest = longestVersion();
  longest.shardVersions.assign(header.info.shardVersions.size(), UINT64_MAX);
  const size_t headBytes = mappedHead(longest, mapped->tensors, checksums, map->checksum()).size();
  mapped->head = mappedHead(header.info, mapped->tensors, checksums, map->checksum(), headBytes);
  VersionImage image{header.info, {}};
  image.info.bytes = mapped->head.size() + (mapped->tensors.empty() ? 0 : mapped->tensors.back().entry.end);
  image.passTo = [mapped = std::move(mapped)](const VersionImage::Sink& sink) -> Status {
    PSD_RETURN_IF_ERROR(sink(std::as_bytes(std::span(mapped->head))));
    for (const MappedTensor& tensor : mapped->tensors)
      PSD_RETURN_IF_ERROR(tensor.forEach(mapped->data, sink));
    return {};
  };
  return image;
}

}  // namespace psd
