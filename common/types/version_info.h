#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace psd {

/// Which moment the values of a version are of.
enum class VersionMoment {
  live,      ///< none: updates that take no lock continued
  snapshot,  ///< one instant between updates
  round,     ///< one instant at which all parameter groups with rounds had finished the same one
  step,      ///< the step that its publishers gave it, in a store of versions
};
std::string_view momentName(VersionMoment moment);
/// The moment with that name; VersionMoment::live for an unknown one.
VersionMoment momentNamed(std::string_view name);

/// What the file of a published version says of it. A value type.
///
/// A version is one .safetensors file, "version-0000000012.safetensors", that any program can load. Its
/// metadata has, as text: "psd.version", the number; "psd.history", sixteen hexadecimal digits;
/// "psd.step"; "psd.created", UTC; "psd.moment", a momentName(); and "psd.crc32c", the CRC-32C of each
/// tensor's bytes, in the order of their data, eight hexadecimal digits each, separated by spaces. A version
/// of one instant also has "psd.shard_versions", numbers separated by spaces.
struct VersionInfo {
  uint64_t number = 0;
  uint64_t history = 0;  ///< random; versions with the same history and number have the same bytes
  uint64_t step = 0;     ///< number of updates that every shard contains; in a store, its publishers' step
  std::string created;   ///< "2026-11-29T12:00:00Z"
  VersionMoment moment = VersionMoment::live;
  uint64_t bytes = 0;  ///< of the file
  /// Updates of each shard, to which psd rollback rebuilds the model; empty: unknown.
  std::vector<uint64_t> shardVersions;
};

}  // namespace psd
