#include "server/policy/diloco.h"

#include "server/policy/inner_config.h"
#include "server/policy/local_plan.h"

namespace psd {
namespace {

constexpr uint64_t kGraceMsMax = 86'400'000;

void readGrace(ObjectReader& in, RoundRules& rules) {
  if (!in.has("grace_ms")) return;
  rules.grace = std::chrono::milliseconds(in.integer("grace_ms", 0, 0, kGraceMsMax));
  if (rules.backupTrainers > 0) {
    in.fail("grace_ms",
            "does not go with backup_trainers: a round that has a quorum closes after the grace, "
            "whoever is missing");
  }
}

RoundWeights readWeights(ObjectReader& in, const Aggregator& aggregator) {
  const std::string weights = in.choice("weights", "samples", {"samples", "equal", "samples2_per_step"});
  if (in.has("weights") && aggregator.name() != "mean") {
    in.fail("weights", "goes with aggregator mean; " + std::string(aggregator.name()) +
                           " counts all contributions alike");
  }
  if (weights == "equal") return RoundWeights::equal;
  return weights == "samples" ? RoundWeights::samples : RoundWeights::samples2PerStep;
}

}  // namespace

PolicyPlan Diloco::read(ObjectReader& in) {
  LocalPlan local = readLocalPlan(in);
  local.inner = readInnerOptimizer(in.object("inner"));
  RoundOptions options = readRounds(in);
  options.name = "diloco";
  readGrace(in, options.rules);
  options.weights = readWeights(in, *options.aggregator);
  local.endsEarly = options.rules.grace.has_value();
  return {.make = [options](const PolicyScope& scope) { return std::make_unique<Sync>(scope, options); },
          .local = std::move(local),
          .rounds = planOf(options),
          .needsWholeGradient = wholeGradientFor(*options.aggregator)};
}

}  // namespace psd
