#pragma once

#include "server/policy/sync.h"

namespace psd {

/// Local SGD: trainers take `period` steps by themselves from common parameters, and a round as under `sync`
/// combines the parameters that they reached. By the rule of SlowMo (Wang, Tantia, Ballas, Rabbat 2020) the
/// parameters go on by the mean difference with momentum: u ← slow_momentum · u + (w − w̄), w ← w − slow_lr ·
/// u. Without momentum and with slow_lr 1 they become the mean. The class that does it is Sync.
struct LocalSgd {
  static PolicyPlan read(ObjectReader& options);
};

}  // namespace psd
