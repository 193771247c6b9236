#pragma once

#include "server/metrics/counter.h"
#include "server/metrics/histogram.h"

namespace psd {

/// The metrics in which policies record closed rounds. As thread-safe as its referents, which outlive it.
struct RoundMetrics {
  Histogram& seconds;       ///< that a round was open
  Histogram& graceSeconds;  ///< of these, since the quorum, if there is a grace period
  Counter& leftOut;         ///< trainers missing from a round when it closed
  Counter& lateCounted;     ///< contributions counted in a later round than theirs
};

}  // namespace psd
