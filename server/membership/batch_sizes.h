#pragma once

#include <cstdint>
#include <map>

#include "common/status/status.h"
#include "common/types/ids.h"

namespace psd {

/// Batch sizes for trainers of different speed, chosen so that a step takes all of them equally long: in
/// proportion to speed, with the same total as if all had the nominal size. Pure, like Roster.
class BatchSizes {
 public:
  /// A trainer's report of its own speed.
  struct Pace {
    uint32_t nominal = 0;      ///< batch size if all were equally fast; the same for all trainers
    uint32_t most = 0;         ///< maximum batch size; at least `nominal`
    double sampleSeconds = 0;  ///< computing time per sample; 0: unknown yet
  };

  /// Records a trainer's report. Rejects (invalidArgument) invalid values and a nominal size that differs
  /// from the other trainers'.
  Status report(SessionId session, Pace pace);
  void leave(SessionId session) { paces_.erase(session); }

  /// Size of the trainer's next batch: the nominal size while its speed is unknown; between 1 and its
  /// maximum. 0 for a trainer without a report.
  uint32_t sizeFor(SessionId session) const;
  /// The nominal size that the trainer reported; 0 for a trainer without a report.
  uint32_t nominalOf(SessionId session) const;

 private:
  /// Target duration of a step for the trainers whose speed is known.
  double stepSeconds() const;

  std::map<SessionId, Pace> paces_;
};

}  // namespace psd
