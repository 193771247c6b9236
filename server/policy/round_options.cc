#include "server/policy/round_options.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace psd {
namespace {

constexpr uint64_t kTrainersMax = 1'000'000;
constexpr uint64_t kDayMs = 86'400'000;

}  // namespace

RoundOptions readRounds(ConfigReader& in) {
  RoundOptions options;
  options.aggregator = readAggregator(in.object(
      {"aggregator", "How the contributions of a round are combined: an object, or its `type` alone."},
      aggregatorForms()));
  RoundRules& rules = options.rules;
  in.integer({"backup_trainers", "A round closes without the last n contributions. Less than `world_size`."},
             rules.backupTrainers, 0, kTrainersMax);
  in.integer(
      {"start_trainers",
       "The first round of a run waits for that many trainers, and at least `quorum`. At most `world_size`. "
       "With a model that was trained before it also waits, at most `membership.grace_ms` after the first "
       "trainer joined, for as many as contributed to its newest round."},
      rules.startTrainers, 0, kTrainersMax);
  const uint32_t least = options.aggregator->contributionsMin();
  rules.quorum = rules.least = least;
  in.integer(
      {"quorum",
       "Contributions without which a round does not close, except by `grace_ms` where no more trainers are "
       "joined. At least, and by default, what the aggregator needs; at most `world_size`.",
       Key::kNoDefault},
      rules.quorum, 1, kTrainersMax);
  if (rules.quorum < least) {
    in.fail("quorum", "must be at least " + std::to_string(least) + ", the minimum of aggregator '" +
                          std::string(options.aggregator->name()) + "', not " + std::to_string(rules.quorum));
  }
  uint64_t timeout = 0;
  in.integer({"round_timeout_ms",
              "Time from the first contribution of a round to its end; in the first round it starts when the "
              "trainers are there. 0: no limit."},
             timeout, 0, kDayMs);
  if (timeout > 0) rules.timeout = std::chrono::milliseconds(timeout);
  if (in.has("on_timeout") && !in.has("round_timeout_ms")) in.fail("on_timeout", "requires round_timeout_ms");
  in.choice<bool>({"on_timeout",
                   "After `round_timeout_ms` the round closes with the contributions that have arrived, if "
                   "they are a quorum (`proceed`), or its pushes fail (`fail`). Needs `round_timeout_ms`."},
                  rules.proceedOnTimeout, {{"proceed", true}, {"fail", false}});
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
