#pragma once

#include <array>

#include "server/policy/aggregator/aggregator.h"
#include "server/policy/aggregator/krum.h"
#include "server/policy/aggregator/mean.h"
#include "server/policy/aggregator/median.h"
#include "server/policy/aggregator/multi_krum.h"
#include "server/policy/aggregator/rda.h"
#include "server/policy/aggregator/trimmed_mean.h"

namespace psd {

/// Every aggregator that a configuration can select; the first is the default. A new aggregator is one file
/// of its own and one entry here.
inline constexpr std::array kAggregatorList = {
    AggregatorEntry{"mean", "the mean, weighted by samples", Mean::read},
    AggregatorEntry{"median", "the median of each element", Median::read},
    AggregatorEntry{"trimmed_mean", "the mean of each element without its extremes", TrimmedMean::read},
    AggregatorEntry{"krum", "the contribution nearest to most others", Krum::read},
    AggregatorEntry{"multi_krum", "the mean of the contributions nearest to most others", MultiKrum::read},
    AggregatorEntry{"rda", "per tensor, the mean length in the mean direction", Rda::read},
};

}  // namespace psd
