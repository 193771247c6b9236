#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "common/checksum/crc32c.h"
#include "common/safetensors/published_version.h"
#include "common/safetensors/safetensors.h"

namespace psd::testing {

/// A tensor of one dimension in a version's file.
struct VersionTensor {
  std::string name;
  std::string_view dtype;
  std::vector<std::byte> bytes;
};

/// The file of a version whose header has `headerBytes` bytes, with its length.
inline std::vector<std::byte> versionFile(uint64_t number, const std::vector<VersionTensor>& tensors,
                                          uint64_t history = 7, uint64_t headerBytes = 2048) {
  std::vector<uint32_t> checksums;
  for (const VersionTensor& tensor : tensors) checksums.push_back(crc32c(tensor.bytes));
  SafetensorsHead head;
  head.addMetadata(versionMetadata({.number = number,
                                    .history = history,
                                    .step = 10 * number,
                                    .created = "2026-11-29T12:00:00Z",
                                    .moment = VersionMoment::snapshot},
                                   checksums));
  for (const VersionTensor& tensor : tensors) {
    head.add(tensor.name, tensor.dtype, {tensor.bytes.size() / safetensorsElementBytes(tensor.dtype)},
             tensor.bytes.size());
  }
  const std::string text = head.text(headerBytes);
  std::vector<std::byte> file(text.size());
  std::memcpy(file.data(), text.data(), text.size());
  for (const VersionTensor& tensor : tensors) {
    file.insert(file.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  return file;
}

}  // namespace psd::testing
