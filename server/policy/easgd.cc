#include "server/policy/easgd.h"

#include "server/policy/local_plan.h"

namespace psd {

PolicyPlan Easgd::read(ObjectReader& in) {
  LocalPlan local = readLocalPlan(in);
  local.alpha = in.number("alpha", 0.1, {.min = 1e-9, .max = 1});
  local.exchange.fullLearningRate = local.alpha;
  return {.make = [](const PolicyScope& scope) { return std::make_unique<Easgd>(scope); },
          .local = std::move(local)};
}

}  // namespace psd
