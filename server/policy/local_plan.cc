#include "server/policy/local_plan.h"

#include "server/policy/modifiers.h"

namespace psd {
namespace {

constexpr uint64_t kPeriodMax = 1'000'000;

}  // namespace

void refuseModifiers(ObjectReader& in) {
  constexpr std::string_view kDifferences =
      "is for gradients; under this policy trainers push differences of parameters";
  readModifiers(in, {kDifferences, kDifferences, kDifferences, kDifferences});
}

LocalPlan readLocalPlan(ObjectReader& in) {
  refuseModifiers(in);
  LocalPlan plan;
  plan.period = in.integer("period", 8, 1, kPeriodMax);
  return plan;
}

}  // namespace psd
