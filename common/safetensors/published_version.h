#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/safetensors/safetensors.h"
#include "common/status/status.h"
#include "common/types/version_info.h"

namespace psd {

/// The header of a version's file.
struct VersionHeader {
  VersionInfo info;                       ///< `bytes` is the size of the file
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their data, without gaps
  std::vector<uint32_t> checksums;        ///< CRC-32C of each tensor's bytes
  std::string map;                        ///< TensorMap::checksum(); empty: not mapped
  /// Of a part of a moved version: the JSON of the header of the whole version's file; empty: not given.
  std::string whole;
  uint64_t dataBegin = 0;  ///< place of the first tensor's bytes in the file
};

/// The dtypes that the tensors of a version may have, by their names in the file.
inline constexpr std::string_view kVersionDtypes[] = {"F64", "I64", "U64",     "F32",     "I32",
                                                      "U32", "F16", "BF16",    "I16",     "U16",
                                                      "I8",  "U8",  "F8_E4M3", "F8_E5M2", "BOOL"};
bool isVersionDtype(std::string_view dtype);

/// The metadata of a version's file whose bytes have these checksums, for SafetensorsHead.
std::map<std::string, std::string> versionMetadata(const VersionInfo& info,
                                                   std::span<const uint32_t> checksums);

/// The key of that metadata, in a file whose tensors a map has made, for the map's checksum.
inline constexpr const char* kMapMetadata = "psd.map";

/// The keys of that metadata in the parts of several daemons, see VersionInfo, and in the version that
/// WholeVersion makes of them: their histories, sixteen hexadecimal digits each, separated by spaces.
inline constexpr const char *kPartMetadata = "psd.part", *kMomentIdMetadata = "psd.moment_id",
                            *kWholeHistoryMetadata = "psd.whole_history", *kWholeMetadata = "psd.whole",
                            *kPartsMetadata = "psd.parts";

/// A version whose metadata is the longest, for the size of a header.
VersionInfo longestVersion();

/// Most bytes of the JSON of a version's header: the limit of the safetensors format. Also of a part, whose
/// header may hold that of the whole version.
inline constexpr uint64_t kVersionHeaderBytesMax = 100'000'000;
/// ErrorCode::io: a file of `fileBytes` bytes has no header of `headerBytes`, or it is above the limit.
Status checkVersionHeaderBytes(uint64_t headerBytes, uint64_t fileBytes);

/// The JSON of the header of a version's file, which follows its length. The error says what is wrong, and
/// does not name the file.
Result<std::string_view> versionHeaderText(std::span<const std::byte> file);

/// Reads the header of a version's file of `fileBytes` bytes: `text` is the JSON after its length. The error
/// says what is wrong, and does not name the file.
Result<VersionHeader> parseVersionHeader(std::string_view text, uint64_t fileBytes);

/// Parses and verifies a whole file: its header, that it is version `number` of `history`, and the checksum
/// of each tensor. ErrorCode::io says what is damaged, and names the tensor.
Result<VersionHeader> verifyVersion(std::span<const std::byte> file, uint64_t number, uint64_t history);
/// Of any version.
Result<VersionHeader> verifyVersion(std::span<const std::byte> file);
/// "the checksum of tensor 'w' is …; its header says …"
std::string wrongChecksum(const SafetensorsEntry& tensor, uint32_t found, uint32_t expected);

}  // namespace psd
