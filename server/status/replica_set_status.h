#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace psd {

/// A daemon's state in its replica set, if an engine is configured. Empty texts: unknown or none. A value
/// type.
struct ReplicaSetStatus {
  std::string daemon;               ///< number of this process, 16 hexadecimal digits
  std::string role;                 ///< "primary", "standby", "syncing"; "ended": about to end or to restart
  uint64_t term = 0;                ///< term in the cluster document
  std::string primary;              ///< its process number
  std::string standby;              ///< process number of the in-sync one
  std::string follower;             ///< for a primary: process number of its follower, in sync or not yet
  std::vector<std::string> others;  ///< addresses of other replicas, including those that would also follow
  std::string wait;                 ///< `replication.wait` of this daemon
  bool waitsForStandby = false;     ///< for a primary: pushes are answered once the standby holds them
  uint64_t lagRecords = 0;  ///< for a primary: not yet held by its follower; for a standby: not yet applied
  uint64_t lagBytes = 0;    ///< the same
  double lastContactSeconds = 0;  ///< since the last contact with the peer
  double takeoverSeconds =
      0;               ///< of the last takeover, from the primary's last contact until this daemon served
  std::string engine;  ///< why the engine does not answer; empty: it does
  std::string waits;   ///< what the daemon waits for before it serves or follows
  uint64_t folderTerm = 0;               ///< term of the state in its folder at startup; 0: none
  std::vector<std::string> lowerLimits;  ///< for a standby: its limits that are below its primary's

  /// For a primary: whether its follower could take over.
  bool inSync() const { return !standby.empty() && standby == follower; }

  /// For a replica that does not serve: "standby": in sync; "following": not in sync yet; "waiting": for what
  /// `waits` says. Empty: it serves, or its role has ended.
  std::string stateAsReplica() const {
    if (role == "primary" || role == "ended") return "";
    if (role == "standby") return "standby";
    return waits.empty() ? "following" : "waiting";
  }

  static void fields(auto& visit, auto& self) {
    visit("daemon", self.daemon);
    visit("role", self.role);
    visit("term", self.term);
    visit("primary", self.primary);
    visit("standby", self.standby);
    visit("follower", self.follower);
    visit("others", self.others);
    visit("wait", self.wait);
    visit("waits_for_standby", self.waitsForStandby);
    visit("lag_records", self.lagRecords);
    visit("lag_bytes", self.lagBytes);
    visit("last_contact_seconds", self.lastContactSeconds);
    visit("takeover_seconds", self.takeoverSeconds);
    visit("engine", self.engine);
    visit("waits", self.waits);
    visit("folder_term", self.folderTerm);
    visit("lower_limits", self.lowerLimits);
  }
};

}  // namespace psd
