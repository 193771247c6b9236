#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/types/ids.h"

namespace psd {

/// The rounds of a policy, for status and people. A value type.
struct RoundsReport {
  struct Round {
    std::vector<Rank> contributors, missing;  ///< whose gradients it is made of; who was left out
    std::vector<Rank> late = {};  ///< of the contributors: whose gradient is of a round that had closed
    double seconds = 0;           ///< that it was open
    std::optional<double> graceSeconds = {};  ///< of these from its quorum on; nothing: no rule of grace
  };
  struct LeftOut {
    Rank rank;
    uint64_t rounds = 0, running = 0;  ///< that closed without it; the newest of them in a row
  };
  uint64_t closed = 0;
  std::optional<uint64_t> generation = {};      ///< of the trainers that average, which are last.contributors
  Round last = {};                              ///< where one has closed
  std::vector<Rank> here = {};                  ///< who has contributed to the open round
  std::optional<double> graceLeftSeconds = {};  ///< nothing: no grace runs
  std::vector<LeftOut> leftOut = {};            ///< of the trainers that are in
};

/// Keeps what there is to tell of closed rounds. Owned by whoever serialises the calls.
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
  /// Of the newest round: whose contributions were of one before.
  void noteLate(std::vector<Rank> late) { last_.late = std::move(late); }
  void forget(SessionId session) { leftOut_.erase(session); }

  /// The newest round, and who was left out of some.
  RoundsReport report() const {
    RoundsReport report{.last = last_};
    for (const auto& [session, leftOut] : leftOut_) report.leftOut.push_back(leftOut);
    return report;
  }

 private:
  RoundsReport::Round last_;
  std::map<SessionId, RoundsReport::LeftOut> leftOut_;  // of trainers that are in
};

}  // namespace psd
