#pragma once

#include <map>
#include <memory>
#include <string>

#include <spdlog/fmt/fmt.h>

#include "common/os/random_id.h"
#include "server/coordination/hosting.h"

namespace psd {

/// The newest process of each rank. A process may span sessions: it departed and returned. Owned by the
/// control loop's thread.
class TrainerProcesses {
 public:
  struct Process {
    ProcessId id;
    uint64_t incarnation = 0;
    std::string tag;  ///< distinguishes processes in the status; unlike the incarnation, not secret
    std::shared_ptr<SessionCounters> counters;
  };

  /// `hosting` is notified of new and ended processes; outlives it.
  explicit TrainerProcesses(Hosting& hosting) : hosting_(hosting) {}

  /// Whether the candidate is the newest process of its rank.
  bool knows(const TrainerProcess& candidate) const {
    const auto newest = ofRank_.find(candidate.rank);
    return candidate.incarnation != 0 && newest != ofRank_.end() &&
           newest->second.incarnation == candidate.incarnation;
  }
  /// The candidate's process if it is known, else a new one that replaces the newest of its rank.
  const Process& enter(const TrainerProcess& candidate) {
    if (knows(candidate)) return ofRank_[candidate.rank];
    end(candidate.rank);
    Process& process = ofRank_[candidate.rank];
    process = {ProcessId{++last_}, candidate.incarnation, drawTag(), std::make_shared<SessionCounters>()};
    hosting_.processBegan(process.id, candidate, process.counters);
    return process;
  }
  /// The newest process of the rank will not return.
  void end(Rank rank) {
    const auto newest = ofRank_.find(rank);
    if (newest == ofRank_.end()) return;
    hosting_.processEnded(newest->second.id);
    ofRank_.erase(newest);
  }
  void endAll() {
    for (const auto& [rank, process] : ofRank_) hosting_.processEnded(process.id);
    ofRank_.clear();
  }

 private:
  /// Random: derived from the incarnation, it would help to guess that.
  static std::string drawTag() { return fmt::format("{:08x}", drawId() >> 32); }

  Hosting& hosting_;
  std::map<Rank, Process> ofRank_;
  uint64_t last_ = 0;
};

}  // namespace psd
