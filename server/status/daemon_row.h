#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace psd {

/// A daemon that serves the model or stands by, as seen by one of them. While it is unreachable its last
/// known values remain. A value type.
struct DaemonRow {
  uint32_t partition = 0;
  std::string address;       ///< where it answered or was last tried
  std::string page;          ///< URL of its page; empty: unknown
  bool here = false;         ///< the reporting daemon itself
  bool polled = false;       ///< recently; else only its address is known
  bool answers = false;      ///< the last poll
  std::string why;           ///< if it does not: the error of the poll
  double silentSeconds = 0;  ///< since its last answer; 0 also if it never answered
  std::string state;         ///< as in its status; empty: it never answered
  std::string role;          ///< in its replica set; "primary" if no engine is configured
  std::string daemon;        ///< process number; empty without an engine
  uint64_t term = 0;         ///< term; 0 without an engine
  std::string waits;         ///< as in ReplicaSetStatus
  bool standbyInSync = false;
  uint64_t lagBytes = 0;          ///< as in ReplicaSetStatus
  double gradientsPerSecond = 0;  ///< applied, over the last ten seconds
  uint64_t trainers = 0;          ///< joined
  uint64_t residentBytes = 0;

  static void fields(auto& visit, auto& self) {
    visit("partition", self.partition);
    visit("address", self.address);
    visit("page", self.page);
    visit("here", self.here);
    visit("polled", self.polled);
    visit("answers", self.answers);
    visit("why", self.why);
    visit("silent_seconds", self.silentSeconds);
    visit("state", self.state);
    visit("role", self.role);
    visit("daemon", self.daemon);
    visit("term", self.term);
    visit("waits", self.waits);
    visit("standby_in_sync", self.standbyInSync);
    visit("lag_bytes", self.lagBytes);
    visit("gradients_per_second", self.gradientsPerSecond);
    visit("trainers", self.trainers);
    visit("resident_bytes", self.residentBytes);
  }
};

/// Sort key of rows: by partition, the primary first.
inline std::pair<uint32_t, bool> placeOf(const DaemonRow& row) {
  return {row.partition, row.role != "primary"};
}

/// All daemons, sorted by placeOf(). A value type.
struct DaemonRows {
  std::vector<DaemonRow> daemons;

  static void fields(auto& visit, auto& self) { visit("daemons", self.daemons); }
};

}  // namespace psd
