#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/os/env.h"
#include "common/safetensors/published_version.h"

namespace psd {

/// The values of a version: one tensor after another, in the layout of its file.
struct VersionContent {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their values, without gaps
  std::span<const std::byte> values;
  /// The CRC-32C of each tensor; nullopt: not known yet.
  std::vector<std::optional<uint32_t>> checksums = {};
};

/// "FOLDER/version-0000000012.safetensors"
std::string versionPath(const std::string& folder, uint64_t number);

/// The size of the file of each version with these tensors, which names the versions of `shards` shards, and
/// of the header in it. `parts`: VersionInfo::parts.
uint64_t versionBytes(std::span<const SafetensorsEntry> tensors, size_t shards, uint32_t parts = 0);
uint64_t versionHeadBytes(std::span<const SafetensorsEntry> tensors, size_t shards, uint32_t parts = 0);

/// The CRC-32C of each tensor.
std::vector<uint32_t> checksumsOf(const VersionContent& content);

/// Writes the file of a version, atomically and durably. `info.bytes` is ignored; returns the file's size. An
/// Error if there is such a file already.
Result<uint64_t> writeVersion(Env& env, const std::string& folder, const VersionInfo& info,
                              const VersionContent& content);

/// Writes the file of a version as it is, atomically and durably; replaces one of the same number.
Status writeVersionFile(Env& env, const std::string& folder, uint64_t number,
                        std::span<const std::byte> file);

/// Copies a file as it is.
Status copyVersionFile(const ReadableFile& file, Env& to, const std::string& path);

/// Reads and verifies a version's file of any name, whatever its number, piece by piece. Errors name the
/// file.
Result<VersionHeader> verifyVersionFile(Env& env, const std::string& path);
Result<VersionHeader> verifyVersionFile(const ReadableFile& file, const std::string& path);
/// Reads the header of a version's file of any name. Errors name the file.
Result<VersionHeader> readVersionHeader(Env& env, const std::string& path);
/// Its JSON, which follows its length.
Result<std::string> readVersionHeaderText(Env& env, const std::string& path);

/// Removes the unfinished files of `name` (of any version, if empty) that processes which died have left. The
/// caller holds the folder.
void removeUnfinishedVersions(Env& env, const std::string& folder, std::string_view name = {});

/// The numbers of the versions in a folder, ascending. A missing folder has none.
Result<std::vector<uint64_t>> listVersions(Env& env, const std::string& folder);

}  // namespace psd
