#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "common/safetensors/published_version.h"
#include "common/types/model_spec.h"

namespace psd {

/// The values of a version: one tensor after another, in the layout of its file.
struct VersionContent {
  ModelSpec model;  ///< tensors with the dtypes of the version
  std::span<const std::byte> values;
};

/// "FOLDER/version-0000000012.safetensors"
std::string versionPath(const std::string& folder, uint64_t number);

/// The size of the file that writeVersion() writes.
uint64_t versionBytes(const VersionInfo& info, const ModelSpec& model);

/// Writes the file of a version, atomically and durably. `info.bytes` is ignored; returns the file's size.
Result<uint64_t> writeVersion(Env& env, const std::string& folder, const VersionInfo& info,
                              const VersionContent& content);

/// A version's file, open for reading: it stays readable after its removal. Thread-safe.
struct OpenVersion {
  VersionInfo info;
  std::shared_ptr<ReadableFile> file;
};
/// Reads the header of a version's file of any name. Errors name the file.
Result<VersionHeader> readVersionHeader(Env& env, const std::string& path);
/// Opens a version's file and checks its header and size, not the values. Errors name the file.
Result<OpenVersion> openVersion(Env& env, const std::string& folder, uint64_t number);

/// Removes the unfinished files that a process which died has left. The caller holds the folder.
void removeUnfinishedVersions(Env& env, const std::string& folder);

/// The numbers of the versions in a folder, ascending. A missing folder has none.
Result<std::vector<uint64_t>> listVersions(Env& env, const std::string& folder);

}  // namespace psd
