#include "server/policy/easgd.h"

#include "server/policy/local_plan.h"

namespace psd {

PolicyPlan Easgd::read(ConfigReader in) {
  LocalPlan local = readLocalPlan(in);
  local.alpha = 0.1;
  in.number(
      {"alpha", "Share of the difference between trainer and center by which each moves towards the other."},
      local.alpha, {.min = 1e-9, .max = 1});
  local.exchange.fullLearningRate = local.alpha;
  return {.make = [](const PolicyScope& scope) { return std::make_unique<Easgd>(scope); },
          .local = std::move(local)};
}

}  // namespace psd
