#pragma once

#include "server/metrics/counter.h"
#include "server/metrics/histogram.h"

namespace psd {

/// Where policies note the rounds that closed. As thread-safe as what it refers to, which outlives it.
struct RoundMetrics {
  Histogram& seconds;       ///< that each was open
  Histogram& graceSeconds;  ///< of these from when a quorum was there, under a rule of grace
  Counter& leftOut;         ///< trainers of a round without which it closed
  Counter& lateCounted;     ///< contributions to a round that were of one before
};

}  // namespace psd
