#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"

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

/// The largest number of a version, far beyond any daemon's: files of larger ones are ignored.
constexpr uint64_t kVersionNumberMax = 1ull << 53;

/// What the file of a published version says of it. A value type.
///
/// A version is one .safetensors file, "version-0000000012.safetensors", that any program can load. Its
/// metadata has, as text: "psd.version", the number; "psd.history", sixteen hexadecimal digits;
/// "psd.step"; "psd.created", UTC; "psd.moment", a momentName(); and "psd.crc32c", the CRC-32C of each
/// tensor's bytes, in the order of their data, eight hexadecimal digits each, separated by spaces. A version
/// of one instant also has "psd.shard_versions", numbers separated by spaces. Where several daemons publish
/// their parts of a model, each part also has "psd.part", "0/2" in the first of two, and "psd.moment_id",
/// sixteen hexadecimal digits; a version that is made of them has "psd.parts" (see WholeVersion). If the
/// model has moved there with its versions, a part has "psd.whole_history", and one that was cut of a moved
/// version also "psd.whole", the header of the whole version's file.
struct VersionInfo {
  uint64_t number = 0;
  uint64_t history = 0;  ///< random; versions with the same history and number have the same bytes
  uint64_t step = 0;     ///< number of updates that every shard contains; in a store, its publishers' step
  std::string created;   ///< "2026-11-29T12:00:00Z"
  VersionMoment moment = VersionMoment::live;
  uint64_t bytes = 0;  ///< of the file
  /// Updates of each shard, to which psd rollback rebuilds the model; empty: unknown.
  std::vector<uint64_t> shardVersions;
  /// Of a model that `parts` daemons serve, the part of daemon `part`; 0: the whole model.
  uint32_t part = 0, parts = 0;
  /// With `parts`: equal in the parts of one moment, which also have the same number. Not 0.
  uint64_t momentId = 0;
  /// With `parts`: the history of the whole version, which a model keeps when it moves; 0: that which the
  /// parts' histories make, see combinedHistory().
  uint64_t wholeHistory = 0;
};

/// How the versions of a daemon compare with those of their source: the daemon that trains the model or
/// stores the weights. A value type.
struct VersionFreshness {
  uint64_t newest = 0, history = 0;  ///< of the daemon's newest version; 0: it has none
  uint64_t sourceNewest = 0,
           sourceHistory = 0;  ///< of the source's newest version, as far as the daemon knows; 0: none
  static constexpr std::chrono::milliseconds kAgeUnknown{1ll << 40};

  /// Time since the daemon was last known to have all versions of the source; 0 for the source itself, at
  /// most kAgeUnknown.
  std::chrono::milliseconds age{0};
  std::vector<uint64_t>
      path;  ///< the daemons from this one to the source, by numbers that each draws at its start

  bool hasAll() const { return newest == sourceNewest && history == sourceHistory; }
  /// Newer versions of the source; UINT64_MAX if that is unknown or has begun another history.
  uint64_t versionsBehind() const {
    if (sourceNewest == 0 && age >= kAgeUnknown) return UINT64_MAX;
    if (history != sourceHistory && sourceNewest > 0) return UINT64_MAX;
    return sourceNewest > newest ? sourceNewest - newest : 0;
  }
};

/// How far behind its source a daemon may be whose versions a reader accepts. A value type.
struct FreshnessBound {
  std::optional<uint64_t> versions;               ///< newer versions of the source
  std::optional<std::chrono::milliseconds> time;  ///< since the daemon had all versions of the source

  bool any() const { return versions || time; }
  /// ErrorCode::stale, naming `server`, if the daemon is further behind.
  Status check(const VersionFreshness& freshness, const std::string& server) const;
};

}  // namespace psd
