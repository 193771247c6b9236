#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace psd {

/// One of the daemons that serve a model or stand by, as one of them sees it. What it said last stays where
/// it is away. A value type.
struct DaemonRow {
  uint32_t partition = 0;
  std::string address;       ///< where it answered, or was asked in vain
  std::string page;          ///< where a browser finds its page; empty: nowhere that is known
  bool here = false;         ///< the daemon that tells
  bool asked = false;        ///< lately; else nothing is known of it but where it is
  bool answers = false;      ///< when it was asked last
  std::string why;           ///< of one that does not: what became of the question
  double silentSeconds = 0;  ///< since its last answer; 0 also where there was none
  std::string state;         ///< as in its status; empty: it has never answered
  std::string role;          ///< in its group; "primary" where no engine is configured
  std::string daemon;        ///< number of the process; empty without an engine
  uint64_t epoch = 0;        ///< 0 without an engine
  std::string waits;         ///< as in GroupStatus
  bool standbyInSync = false;
  uint64_t lagBytes = 0;          ///< as in GroupStatus
  double gradientsPerSecond = 0;  ///< applied, of the last ten seconds
  uint64_t trainers = 0;          ///< that are in
  uint64_t residentBytes = 0;

  static void fields(auto& visit, auto& self) {
    visit("partition", self.partition);
    visit("address", self.address);
    visit("page", self.page);
    visit("here", self.here);
    visit("asked", self.asked);
    visit("answers", self.answers);
    visit("why", self.why);
    visit("silent_seconds", self.silentSeconds);
    visit("state", self.state);
    visit("role", self.role);
    visit("daemon", self.daemon);
    visit("epoch", self.epoch);
    visit("waits", self.waits);
    visit("standby_in_sync", self.standbyInSync);
    visit("lag_bytes", self.lagBytes);
    visit("gradients_per_second", self.gradientsPerSecond);
    visit("trainers", self.trainers);
    visit("resident_bytes", self.residentBytes);
  }
};

/// Rows are in the order of this: by partition, the primary first.
inline std::pair<uint32_t, bool> placeOf(const DaemonRow& row) {
  return {row.partition, row.role != "primary"};
}

/// All of them, by placeOf(). A value type.
struct DaemonRows {
  std::vector<DaemonRow> daemons;

  static void fields(auto& visit, auto& self) { visit("daemons", self.daemons); }
};

}  // namespace psd
