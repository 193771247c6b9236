#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "server/membership/trainer.h"

namespace psd {

/// A trainer that wants to join.
struct Candidate {
  Rank rank;
  uint32_t worldSize = 0;  ///< 0: chosen by Roster::place()
  std::string host;
  uint32_t pid = 0;
  uint64_t incarnation = 0;    ///< a random number that identifies the process; 0: none
  uint64_t lastDaemon = 0;     ///< daemon process that it was last joined at; 0: none
  bool returns = false;        ///< the trainer was joined at this daemon process before
  bool anyRank = false;        ///< takes the lowest free rank
  uint64_t move = 0;           ///< the move by which the model arrived here, as it knows; 0: none
  std::string codec = "none";  ///< of its pushes, with options; human-readable, like the next
  std::string pullCodec = "none";
  bool ownCodec = false, ownPullCodec = false;  ///< requested by the trainer; else the daemon's choice
  bool averages = false;                        ///< averages by AllReduceTerms
  std::string optimizer = {};                   ///< of the trainer, as JSON; empty: the daemon's
  bool bridges = false;                         ///< the bridge of this machine; not part of any world
  std::string owner = {};  ///< the caller that owns the process (Identity::caller); empty: unknown
  std::string asker = {};  ///< the caller, for the log

  /// As it is known in this session.
  TrainerRef in(SessionId session) const { return {session, rank, incarnation, bridges}; }
};

/// Whether `caller`, which knows a process's incarnation, may resume the process of `owner`. An empty name,
/// which only a daemon without `auth` has, passes: there the incarnation alone is the secret.
inline bool mayResume(const std::string& owner, const std::string& caller) {
  return owner.empty() || caller.empty() || owner == caller;
}

/// Why a trainer departed.
enum class Departure {
  left,
  lost,
  daemonEnding,  ///< the daemon exits: the trainer is not done
};

/// The departed ranks of a world. A value type.
struct Departed {
  uint32_t worldSize = 0;
  std::set<Rank> ranks;
  bool operator==(const Departed&) const = default;
};

/// The joined trainers: ranks, world size, and whether all have departed. Pure: no threads, clocks or
/// sockets; owned by the daemon's control loop.
class Roster {
 public:
  /// `worldSize` 0: the first trainer's world size holds while any trainer is joined. `worldSizeMin`: number
  /// of ranks that complete an elastic world; 0: all of them.
  explicit Roster(uint32_t worldSize = 0, uint32_t worldSizeMin = 0)
      : configured_(worldSize), worldSize_(worldSize), least_(worldSizeMin) {}

  /// Changes the configured world, before any trainer has joined; see the constructor.
  void configure(uint32_t worldSize, uint32_t worldSizeMin);
  /// Fills in the candidate's world size and rank if not given. A candidate without both gets a world of size
  /// 1 if neither another trainer nor the configuration gives a size. Rejects a rank without a world size
  /// (invalidArgument), and any candidate if all ranks are taken (rankTaken).
  Status place(Candidate& candidate) const;
  /// Whether the candidate may join if its rank is free. Rejects a wrong world size or rank, naming both
  /// sides (worldSizeMismatch, invalidArgument); a candidate that was joined before, at any daemon, if its
  /// rank has had another incarnation since (rankTaken); and the incarnation of another owner's process
  /// (forbidden).
  Status mayJoin(const Candidate& candidate) const;
  /// Whether the candidate would get a rank if one trainer fewer were joined: it takes any rank, is not
  /// joined itself, and gives the same world size.
  bool needsRoom(const Candidate& candidate) const;
  /// Takes the rank. Rejects what mayJoin() rejects, and a taken rank (rankTaken).
  Result<SessionId> join(const Candidate& candidate);
  /// Sets the owner of a trainer that has returned; an empty one changes nothing.
  void setOwner(SessionId session, const std::string& owner);
  /// Frees the rank; unknown sessions are ignored (a loss may be reported after a leave).
  void depart(SessionId session, Departure how);

  /// Reserves the ranks of the previous daemon's trainers: until keep({}), a new trainer that takes any rank
  /// gets another one.
  void keep(std::set<Rank> ranks) { kept_ = std::move(ranks); }
  /// The ranks of keep() whose trainers are not joined.
  std::set<Rank> awaited() const;
  /// Whether place(), which rejects the candidate now, may find a rank once none are reserved any more.
  bool canRejoinRank(const Candidate& candidate) const;

  /// Restores the world that an earlier daemon saved, before any trainer joins: its size and the departed
  /// ranks. False if that was a different world, which is ignored.
  bool recall(uint32_t worldSize, std::set<Rank> departed);
  /// The departed ranks.
  std::set<Rank> departed() const;

  /// The session that has the rank.
  std::optional<SessionId> holderOf(Rank rank) const;
  bool hasBridge() const { return trainers() < present(); }
  uint32_t worldSize() const { return worldSize_; }
  /// Ranks that make the world complete.
  uint32_t worldSizeMin() const { return least_ != 0 ? least_ : worldSize_; }
  bool full() const { return worldSize_ != 0 && trainers() >= worldSize_; }
  /// Number of joined trainers, without a bridge.
  size_t trainers() const;
  size_t present() const { return sessions_.size(); }
  uint64_t lostCount() const { return lost_; }
  const std::map<SessionId, Candidate>& sessions() const { return sessions_; }
  /// Whether enough ranks to complete the world have joined at least once, and none is joined any more.
  bool everyoneDone() const;
  /// A violated invariant; empty: none.
  std::string checkInvariants() const;

 private:
  Status fitsWorld(const Candidate& candidate) const;
  /// The world size that candidates must give; 0: any.
  uint32_t expected() const { return configured_ != 0 ? configured_ : trainers() == 0 ? 0 : worldSize_; }

  uint32_t configured_;
  uint32_t worldSize_ = 0;
  uint32_t least_;
  uint64_t lastSession_ = 0;
  uint64_t lost_ = 0;
  std::map<SessionId, Candidate> sessions_;
  std::set<Rank> seen_;                    // ranks that ever joined in this world
  std::map<Rank, Candidate> lastHolders_;  // the newest of each rank
  std::set<Rank> kept_;                    // reserved for the previous daemon's trainers
};

}  // namespace psd
