#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/status/status.h"
#include "common/types/ids.h"

namespace psd {

/// A trainer that wants to join.
struct Candidate {
  Rank rank;
  uint32_t worldSize = 0;  ///< 0: as Roster::place() finds it
  std::string host;
  uint32_t pid = 0;
  uint64_t incarnation = 0;    ///< a random number that names the process; 0: it has none
  uint64_t lastDaemon = 0;     ///< which daemon process it was in before; 0: none
  bool returns = false;        ///< the trainer was in at this daemon process before
  bool anyRank = false;        ///< takes the lowest one that is free
  uint64_t move = 0;           ///< by which it knows that the model came here; 0: none
  std::string codec = "none";  ///< of its pushes, with options; for people, like the next
  std::string pullCodec = "none";
  bool ownCodec = false, ownPullCodec = false;  ///< it asked for them; else they are the daemon's choice
  bool averages = false;                        ///< goes by AllReduceTerms
  bool bridges = false;    ///< the bridge of this machine, of kBridgeRank, which no world counts
  std::string owner = {};  ///< the caller that owns the process (Identity::caller); empty: not known
  std::string asker = {};  ///< the caller, for the log
};

/// Whether `caller`, which knows a process's incarnation, may resume the process of `owner`. An empty name,
/// which only a daemon without `auth` has, passes: there the incarnation alone is the secret.
inline bool maySucceed(const std::string& owner, const std::string& caller) {
  return owner.empty() || caller.empty() || owner == caller;
}

/// Why a trainer is no longer there.
enum class Departure {
  left,
  lost,
  sentAway,  ///< the daemon ends: it is not done
};

/// The ranks of a world that have been in and are no more. A value type.
struct Departed {
  uint32_t worldSize = 0;
  std::set<Rank> ranks;
  bool operator==(const Departed&) const = default;
};

/// The trainers that are in: ranks, world size and whether everyone has come and gone. Pure: no threads,
/// clocks or sockets; the daemon's control loop owns it.
class Roster {
 public:
  /// `worldSize` 0: the first trainer's world size holds while anybody is in. `worldSizeMin`: so many ranks
  /// make a world in which trainers come and go; 0: all of them.
  explicit Roster(uint32_t worldSize = 0, uint32_t worldSizeMin = 0)
      : configured_(worldSize), worldSize_(worldSize), least_(worldSizeMin) {}

  /// Goes by another configured world, before anybody has joined; see the constructor.
  void configure(uint32_t worldSize, uint32_t worldSizeMin);
  /// Fills in what the candidate leaves open: its world size, its rank. A candidate that leaves both open is
  /// a world of its own where no other trainer and no configuration says a size. Refuses (invalidArgument,
  /// rankTaken) a rank without a world size, and where all ranks are taken.
  Status place(Candidate& candidate) const;
  /// Whether the candidate fits, its rank being free. Refuses (worldSizeMismatch, invalidArgument) with both
  /// sides named; and one that was in before, with whatever daemon, when its rank has had another incarnation
  /// since (rankTaken); and one that gives the incarnation of another owner's process (forbidden).
  Status mayJoin(const Candidate& candidate) const;
  /// Whether the candidate would get a rank if one trainer fewer were in: it takes any rank, is not in
  /// itself, and says the world size of the others.
  bool needsRoom(const Candidate& candidate) const;
  /// Takes the rank. Refuses what mayJoin() refuses, and a rank that is taken (rankTaken).
  Result<SessionId> join(const Candidate& candidate);
  /// Sets the owner of a trainer that has come back; an empty one changes nothing.
  void setOwner(SessionId session, const std::string& owner);
  /// Frees the rank; unknown sessions are ignored (a loss may be reported after a leave).
  void depart(SessionId session, Departure how);

  /// Ranks of trainers that a daemon before this one had: until keep({}), who takes any rank and comes for
  /// the first time gets another.
  void keep(std::set<Rank> ranks) { kept_ = std::move(ranks); }
  /// The ranks of keep() whose trainers are not in.
  std::set<Rank> awaited() const;
  /// Whether place() may find a rank for a candidate, which it refuses now, when no more are kept.
  bool mayHaveRankLater(const Candidate& candidate) const;

  /// Takes over what an earlier daemon kept of a world, before anybody joins: its number of trainers, and the
  /// ranks that have been in and are no more. False when that was another world, which tells nothing of this
  /// one.
  bool recall(uint32_t worldSize, std::set<Rank> departed);
  /// The ranks that have been in and are no more.
  std::set<Rank> departed() const;

  /// The session that has the rank.
  std::optional<SessionId> holderOf(Rank rank) const;
  uint32_t worldSize() const { return worldSize_; }
  /// Ranks that make the world complete.
  uint32_t worldSizeMin() const { return least_ != 0 ? least_ : worldSize_; }
  bool full() const { return worldSize_ != 0 && trainers() >= worldSize_; }
  /// How many are in, without a bridge.
  size_t trainers() const;
  size_t present() const { return sessions_.size(); }
  uint64_t lostCount() const { return lost_; }
  const std::map<SessionId, Candidate>& sessions() const { return sessions_; }
  /// Whether as many ranks as make the world have joined at least once, and none is in any more.
  bool everyoneDone() const;

 private:
  Status fitsWorld(const Candidate& candidate) const;
  /// The world size that candidates must say; 0: any.
  uint32_t expected() const { return configured_ != 0 ? configured_ : trainers() == 0 ? 0 : worldSize_; }

  uint32_t configured_;
  uint32_t worldSize_ = 0;
  uint32_t least_;
  uint64_t lastSession_ = 0;
  uint64_t lost_ = 0;
  std::map<SessionId, Candidate> sessions_;
  std::set<Rank> seen_;                    // ranks that ever joined in this world
  std::map<Rank, Candidate> lastHolders_;  // the newest of each rank
  std::set<Rank> kept_;                    // for trainers that were in before
};

}  // namespace psd
