#pragma once

#include <cstdint>
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
};

/// "FOLDER/version-0000000012.safetensors"
std::string versionPath(const std::string& folder, uint64_t number);

/// The size of the file of each version with these tensors, which names the versions of `shards` shards, and
/// of the header in it.
uint64_t versionBytes(std::span<const SafetensorsEntry> tensors, size_t shards);
uint64_t versionHeadBytes(std::span<const SafetensorsEntry> tensors, size_t shards);

/// Writes the file of a version, atomically and durably. `info.bytes` is ignored; returns the file's size. An
/// Error if there is such a file already.
Result<uint64_t> writeVersion(Env& env, const std::string& folder, const VersionInfo& info,
                              const VersionContent& content);

/// Reads and verifies a version's file of any name, whatever its number. Errors name the file.
Result<VersionInfo> verifyVersionFile(Env& env, const std::string& path);
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
