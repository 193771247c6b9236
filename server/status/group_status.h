#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace psd {

/// What a daemon is to its group, where an engine is configured. Empty texts: not known, or nobody. A value
/// type.
struct GroupStatus {
  std::string daemon;    ///< number of this process, 16 hexadecimal digits
  std::string role;      ///< "primary", "standby", "newcomer"; "over": about to end or to begin anew
  uint64_t epoch = 0;    ///< of the plan
  std::string primary;   ///< its number
  std::string standby;   ///< number of the one in sync
  std::string follower;  ///< of a primary: number of the daemon that follows it, in sync or not yet
  std::vector<std::string> others;  ///< where other daemons of the pair are, those that would follow too
  std::string wait;                 ///< `replication.wait` of this daemon
  bool waitsForStandby = false;     ///< of a primary: pushes are answered when the standby holds them
  uint64_t lagRecords =
      0;  ///< of a primary: that the follower does not hold; of a follower: that it has not applied
  uint64_t lagBytes = 0;    ///< the same
  double heardSeconds = 0;  ///< since the other one was last heard
  double takeoverSeconds =
      0;               ///< of the last take-over, from the last sign of the primary until this daemon served
  std::string engine;  ///< why the engine does not answer; empty: it does
  std::string waits;   ///< what the daemon waits for before it serves or follows
  uint64_t folderEpoch = 0;              ///< epoch of the state that its folder had when it started; 0: none
  std::vector<std::string> limitsBelow;  ///< of a standby: its limits that are below its primary's

  /// Of a primary: whether its follower could take over.
  bool inSync() const { return !standby.empty() && standby == follower; }

  /// Of one that does not serve: "standby", in sync; "following", not in sync yet; "waiting", as `waits`
  /// says. Empty: it serves, or its part is over.
  std::string stateBesidePrimary() const {
    if (role == "primary" || role == "over") return "";
    if (role == "standby") return "standby";
    return waits.empty() ? "following" : "waiting";
  }

  static void fields(auto& visit, auto& self) {
    visit("daemon", self.daemon);
    visit("role", self.role);
    visit("epoch", self.epoch);
    visit("primary", self.primary);
    visit("standby", self.standby);
    visit("follower", self.follower);
    visit("others", self.others);
    visit("wait", self.wait);
    visit("waits_for_standby", self.waitsForStandby);
    visit("lag_records", self.lagRecords);
    visit("lag_bytes", self.lagBytes);
    visit("heard_seconds", self.heardSeconds);
    visit("takeover_seconds", self.takeoverSeconds);
    visit("engine", self.engine);
    visit("waits", self.waits);
    visit("folder_epoch", self.folderEpoch);
    visit("limits_below", self.limitsBelow);
  }
};

}  // namespace psd
