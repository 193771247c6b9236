#pragma once

#include "server/optimizer/adam.h"

namespace psd {

/// Adam with decoupled weight decay, Loshchilov, Hutter 2019: torch::optim::AdamW. A value type.
struct AdamW : AdamBase<true> {
  static constexpr std::string_view kName = "adamw", kSummary = "Adam with decoupled weight decay.";
};

}  // namespace psd
