#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/os/env.h"

namespace psd {

/// The file beside the versions that outlives the daemon: "versions.json", sealed with its checksum. A value
/// type.
struct VersionIndex {
  using Time = std::chrono::system_clock::time_point;

  uint64_t newest = 0;   ///< number of the newest version; 0: none
  uint64_t history = 0;  ///< of the next version
  /// Of a part: of the whole versions; 0: that which the parts' histories make.
  uint64_t wholeHistory = 0;
  /// Of a part: by how much the number of a version is above that of its round.
  uint64_t ahead = 0;
  /// Of a part: no version up to this number is made here, since they were made before the model moved here.
  uint64_t arrived = 0;
  bool copied = false;    ///< the versions are those of another daemon, and can be read there again
  bool arriving = false;  ///< they are part of a move that has not put its model in place: they do not count
  bool uncommitted = false;  ///< they have arrived by a move that was not known to be committed
  /// By version, until when leases may keep it; rounded up, so that renewals rarely change it.
  std::map<uint64_t, Time> leasedUntil;
};

inline constexpr const char* kVersionIndexName = "versions.json";

/// The file's text.
std::string versionIndexText(const VersionIndex& index);
/// Replaces the file, atomically and durably.
Status writeVersionIndex(Env& env, const std::string& folder, const std::string& text);
/// nullopt: there is none. The error names the file.
Result<std::optional<VersionIndex>> readVersionIndex(Env& env, const std::string& folder);

}  // namespace psd
