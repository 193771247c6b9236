#include "server/policy/round_options.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace psd {
namespace {

constexpr uint64_t kTrainersMax = 1'000'000;
constexpr uint64_t kDayMs = 86'400'000;

}  // namespace

RoundOptions readRounds(ObjectReader& in) {
  RoundOptions options;
  ObjectReader aggregator = in.object("aggregator");
  options.aggregator = readAggregator(aggregator);
  RoundRules& rules = options.rules;
  rules.backupTrainers = static_cast<uint32_t>(in.integer("backup_trainers", 0, 0, kTrainersMax));
  rules.startTrainers = static_cast<uint32_t>(in.integer("start_trainers", 0, 0, kTrainersMax));
  const uint32_t least = options.aggregator->contributionsMin();
  rules.quorum = static_cast<uint32_t>(in.integer("quorum", least, 1, kTrainersMax));
  rules.least = least;
  if (rules.quorum < least) {
    in.fail("quorum", "must be at least " + std::to_string(least) + ", the minimum of aggregator '" +
                          std::string(options.aggregator->name()) + "', not " + std::to_string(rules.quorum));
  }
  if (const uint64_t timeout = in.integer("round_timeout_ms", 0, 0, kDayMs); timeout > 0) {
    rules.timeout = std::chrono::milliseconds(timeout);
  }
  if (in.has("on_timeout") && !in.has("round_timeout_ms")) in.fail("on_timeout", "requires round_timeout_ms");
  rules.proceedOnTimeout = in.choice("on_timeout", "proceed", {"proceed", "fail"}) == "proceed";
  return options;
}

RoundPlan planOf(const RoundOptions& options) {
  RoundPlan plan{.backupTrainers = options.rules.backupTrainers,
                 .minTrainers = std::max(options.rules.quorum, options.rules.startTrainers)};
  const auto globs = options.aggregator->globs();
  plan.tensorGlobs.assign(globs.begin(), globs.end());
  plan.unbounded = !options.rules.timeout || !options.rules.proceedOnTimeout;
  if (options.aggregator->compares()) {
    plan.compares = [rules = options.rules](uint32_t trainers) {
      return std::max(rules.quorum, trainers - std::min(trainers, rules.backupTrainers));
    };
  }
  return plan;
}

std::string wholeGradientReason(const Aggregator& aggregator) {
  if (aggregator.byTensor()) return fmt::format("aggregator {} compares whole tensors", aggregator.name());
  if (!aggregator.needsDistances()) return {};
  return fmt::format("aggregator {} compares whole gradients", aggregator.name());
}

}  // namespace psd
