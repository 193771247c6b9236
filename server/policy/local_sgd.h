#pragma once

#include "server/policy/sync.h"

namespace psd {

/// Local SGD: trainers take `period` local steps from common parameters, and a round as under `sync` combines
/// the resulting parameters. The update follows SlowMo (Wang, Tantia, Ballas, Rabbat 2020), momentum on the
/// mean difference: u ← slow_momentum · u + (w − w̄), w ← w − slow_lr · u. Without momentum and with slow_lr
/// 1 the result is the mean. Implemented by Sync.
struct LocalSgd {
  static PolicyPlan read(ConfigReader options);
};

}  // namespace psd
