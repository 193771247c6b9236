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
