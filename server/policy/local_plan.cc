#include "server/policy/local_plan.h"

#include "server/policy/modifiers.h"

namespace psd {
namespace {

constexpr uint64_t kPeriodMax = 1'000'000;

}  // namespace

void refuseModifiers(ConfigReader& in) {
  constexpr std::string_view kDifferences =
      "is for gradients; under this policy trainers push differences of parameters";
  readModifiers(in, {kDifferences, kDifferences, kDifferences, kDifferences});
}

LocalPlan readLocalPlan(ConfigReader& in) {
  refuseModifiers(in);
  LocalPlan plan;
  plan.period = 8;
  in.integer({"period", "Local steps of a trainer between two exchanges."}, plan.period, 1, kPeriodMax);
  return plan;
}

}  // namespace psd
