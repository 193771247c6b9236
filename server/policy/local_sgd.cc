#include "server/policy/local_sgd.h"

#include "server/policy/local_plan.h"

namespace psd {

PolicyPlan LocalSgd::read(ObjectReader& in) {
  LocalPlan local = readLocalPlan(in);
  local.exchange.fullLearningRate = in.number("slow_lr", 1, {.min = 1e-9, .max = 1e6});
  local.exchange.algorithm =
      Sgd{.momentum = in.number("slow_momentum", 0, {.min = 0, .max = 1, .maxExclusive = true})};
  RoundOptions options = readRounds(in);
  options.name = "local_sgd";
  return {.make = [options](const PolicyScope& scope) { return std::make_unique<Sync>(scope, options); },
          .local = std::move(local),
          .rounds = planOf(options),
          .needsWholeGradient = wholeGradientReason(*options.aggregator)};
}

}  // namespace psd
