#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// The rounds of a policy, for the status report. A value type.
struct RoundsReport {
  struct Round {
    std::vector<Rank> contributors, missing;  ///< trainers that contributed; trainers left out
    std::vector<Rank> late = {};              ///< contributors whose gradient is of an already closed round
    double seconds = 0;                       ///< open time
    std::optional<double> graceSeconds = {};  ///< open time after its quorum; nullopt: no grace period
  };
  struct LeftOut {
    Rank rank;
    uint64_t rounds = 0, running = 0;  ///< rounds that closed without it: total; newest consecutive ones
  };
  uint64_t closed = 0;
  std::optional<uint64_t> generation = {};      ///< of the averaging group; its members: last.contributors
  Round last = {};                              ///< valid if closed > 0
  std::vector<Rank> here = {};                  ///< contributors to the open round
  std::optional<double> graceLeftSeconds = {};  ///< nullopt: no grace period is running
  std::vector<LeftOut> leftOut = {};            ///< joined trainers only
};

/// Collects statistics of closed rounds. Not thread-safe: the owner serializes the calls.
class RoundTally {
 public:
  /// A trainer of a round.
  struct Member {
    SessionId session;
    Rank rank;
  };

  void note(const std::vector<Member>& contributors, const std::vector<Member>& missing, double seconds,
            std::optional<double> graceSeconds) {
    last_ = {.seconds = seconds, .graceSeconds = graceSeconds};
    for (const Member& member : contributors) {
      last_.contributors.push_back(member.rank);
      if (auto found = leftOut_.find(member.session); found != leftOut_.end()) found->second.running = 0;
    }
    for (const Member& member : missing) {
      last_.missing.push_back(member.rank);
      RoundsReport::LeftOut& leftOut = leftOut_[member.session];
      leftOut = {member.rank, leftOut.rounds + 1, leftOut.running + 1};
    }
  }
  /// Sets the late contributors of the newest round.
  void noteLate(std::vector<Rank> late) { last_.late = std::move(late); }
  void forget(SessionId session) { leftOut_.erase(session); }

  /// The newest round, and the trainers left out of any round.
  RoundsReport report() const {
    RoundsReport report{.last = last_};
    for (const auto& [session, leftOut] : leftOut_) report.leftOut.push_back(leftOut);
    return report;
  }

 private:
  RoundsReport::Round last_;
  std::map<SessionId, RoundsReport::LeftOut> leftOut_;  // of joined trainers
};

}  // namespace psd
