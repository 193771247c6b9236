#include "server/policy/local_sgd.h"

#include "server/policy/local_plan.h"

namespace psd {

PolicyPlan LocalSgd::read(ConfigReader in) {
  LocalPlan local = readLocalPlan(in);
  local.exchange.fullLearningRate = 1;
  in.number({"slow_lr", "How far the parameters move towards the trainers' results; 1: to their mean."},
            local.exchange.fullLearningRate, {.min = 1e-9, .max = 1e6});
  Sgd exchange;
  in.number({"slow_momentum", "SlowMo: share of the previous round's step that is kept."}, exchange.momentum,
            {.min = 0, .max = 1, .maxExclusive = true});
  local.exchange.algorithm = exchange;
  RoundOptions options = readRounds(in);
  options.name = "local_sgd";
  return {.make = [options](const PolicyScope& scope) { return std::make_unique<Sync>(scope, options); },
          .local = std::move(local),
          .rounds = planOf(options),
          .needsWholeGradient = wholeGradientReason(*options.aggregator)};
}

}  // namespace psd
