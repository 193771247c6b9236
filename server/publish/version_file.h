#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/os/env.h"
#include "common/types/model_spec.h"

namespace psd {

/// Which moment the values of a version are of.
enum class Moment {
  live,      ///< none: updates that take no lock continued
  snapshot,  ///< one instant between updates
  round,     ///< one instant at which all parameter groups had finished the same round
};
std::string_view momentName(Moment moment);
/// The moment with that name; Moment::live for an unknown one.
Moment momentNamed(std::string_view name);

/// What the file of a published version says of it. A value type.
///
/// A version is one .safetensors file, "version-0000000012.safetensors", that any program can load. Its
/// metadata has, as text: "psd.version", the number; "psd.history", sixteen hexadecimal digits;
/// "psd.updates"; "psd.created", UTC; "psd.moment", a momentName(); and "psd.crc32c", the CRC-32C of each
/// tensor's bytes, in the order of their data, eight hexadecimal digits each, separated by spaces.
struct VersionInfo {
  uint64_t number = 0;
  uint64_t history = 0;  ///< random; versions with the same history and number have the same bytes
  uint64_t updates = 0;  ///< that every shard contains
  std::string created;   ///< "2026-11-29T12:00:00Z"
  Moment moment = Moment::live;
  uint64_t bytes = 0;  ///< of the file
};

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
/// Opens a version's file and checks its header and size, not the values. Errors name the file.
Result<OpenVersion> openVersion(Env& env, const std::string& folder, uint64_t number);

/// The numbers of the versions in a folder, ascending. A missing folder has none.
Result<std::vector<uint64_t>> listVersions(Env& env, const std::string& folder);

}  // namespace psd
