#pragma once

#include <cstdint>
#include <map>

#include "common/status/status.h"
#include "common/types/ids.h"

namespace psd {

/// How large the batches of trainers of different speed are to be, so that all take as long for a step: in
/// proportion to speed, and together as many samples as if all had the nominal size. Pure, like Roster.
class BatchSizes {
 public:
  /// What a trainer says of its own speed.
  struct Pace {
    uint32_t nominal = 0;      ///< samples of a batch if all were alike; one number for all trainers
    uint32_t most = 0;         ///< that it takes in one batch; at least `nominal`
    double sampleSeconds = 0;  ///< that it computes for a sample; 0: not known yet
  };

  /// Notes what a trainer says now. Refuses (invalidArgument) what cannot be, or does not go with the other
  /// trainers.
  Status report(SessionId session, Pace pace);
  void leave(SessionId session) { paces_.erase(session); }

  /// Samples of the trainer's next batch: the nominal size while its pace is not known; at least 1 and at
  /// most what it takes. 0 for one that reported nothing.
  uint32_t sizeFor(SessionId session) const;
  /// The nominal size that the trainer reported; 0 for one that reported nothing.
  uint32_t nominalOf(SessionId session) const;

 private:
  /// How long a step is to take the trainers whose pace is known.
  double stepSeconds() const;

  std::map<SessionId, Pace> paces_;
};

}  // namespace psd
