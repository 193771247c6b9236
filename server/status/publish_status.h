#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace psd {

/// A published version.
struct VersionStatus {
  uint64_t number = 0;
  uint64_t step = 0;    ///< number of updates that every shard contains, or the publishers' step
  std::string created;  ///< UTC
  std::string moment;   ///< "live", "snapshot", "round" or "step", see common/types/version_info.h
  uint64_t bytes = 0;   ///< of its file

  static void fields(auto& visit, auto& self) {
    visit("number", self.number);
    visit("step", self.step);
    visit("created", self.created);
    visit("moment", self.moment);
    visit("file_bytes", self.bytes);
  }
};

/// A reader's lease of a version.
struct VersionLeaseStatus {
  std::string reader;
  uint64_t version = 0;
  uint64_t behind = 0;  ///< newer versions
  double secondsLeft = 0;

  static void fields(auto& visit, auto& self) {
    visit("reader", self.reader);
    visit("version", self.version);
    visit("behind", self.behind);
    visit("left_seconds", self.secondsLeft);
  }
};

/// A step of which not all parts have arrived.
struct AssemblingStatus {
  uint64_t step = 0;
  uint32_t worldSize = 0;
  std::vector<uint32_t> missing;         ///< ranks that have not begun, or not sent all of their parts
  uint64_t arrivedBytes = 0, bytes = 0;  ///< the latter 0: not all ranks have begun

  static void fields(auto& visit, auto& self) {
    visit("step", self.step);
    visit("world_size", self.worldSize);
    visit("missing_ranks", self.missing);
    visit("arrived_bytes", self.arrivedBytes);
    visit("total_bytes", self.bytes);
  }
};

/// The daemon that a replica follows.
struct UpstreamStatus {
  std::string address;               ///< empty: none is reached
  uint64_t newest = 0;               ///< number of the source's newest version, as far as known; 0: none
  uint64_t hops = 0;                 ///< daemons from this one to the source; 0: unknown
  std::optional<double> ageSeconds;  ///< since all versions of the source were here; nothing: unknown

  static void fields(auto& visit, auto& self) {
    visit("address", self.address);
    visit("newest", self.newest);
    visit("hops", self.hops);
    visit("age_seconds", self.ageSeconds);
  }
};

/// The published versions, if the configuration has `publish`.
struct PublishStatus {
  std::string from;     ///< as configured: "training", "publishers" or "upstream"
  std::string path;     ///< folder of the versions; empty: they are in memory and end with the daemon
  std::string as;       ///< as configured: "model", "f32", "bf16" or "f16"; empty: from publishers
  std::string history;  ///< sixteen hexadecimal digits
  uint64_t newest = 0;  ///< 0: none
  uint64_t bytes = 0;   ///< of all versions
  uint64_t published = 0, failures = 0;
  uint64_t abandoned = 0;      ///< steps whose parts did not all arrive
  uint64_t receivedBytes = 0;  ///< of parts
  std::optional<AssemblingStatus> assembling;
  std::optional<UpstreamStatus> upstream;  ///< of a replica
  std::string error;                       ///< empty: the last attempt succeeded
  double lastSeconds = 0, pauseMaxSeconds = 0;
  std::vector<VersionStatus> versions;     ///< oldest first
  std::vector<VersionLeaseStatus> leases;  ///< ordered by reader

  static void fields(auto& visit, auto& self) {
    visit("from", self.from);
    visit("path", self.path);
    visit("as", self.as);
    visit("history", self.history);
    visit("newest", self.newest);
    visit("total_bytes", self.bytes);
    visit("published", self.published);
    visit("failures", self.failures);
    visit("abandoned", self.abandoned);
    visit("received_bytes", self.receivedBytes);
    visit("assembling", self.assembling);
    visit("upstream", self.upstream);
    visit("error", self.error);
    visit("last_seconds", self.lastSeconds);
    visit("pause_max_seconds", self.pauseMaxSeconds);
    visit("versions", self.versions);
    visit("leases", self.leases);
  }
};

}  // namespace psd
