#include "server/policy/diloco.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "server/policy/inner_config.h"
#include "server/policy/local_plan.h"

namespace psd {
namespace {

constexpr uint64_t kGraceMsMax = 86'400'000, kDefaultGraceMaxMs = 2'000;
constexpr uint64_t kDelayMax = 1'000'000;

void readGrace(ObjectReader& in, RoundRules& rules) {
  rules.graceMeasured = in.hasText("grace_ms");
  if (!rules.graceMeasured && in.has("grace_max_ms")) in.fail("grace_max_ms", R"(requires grace_ms "auto")");
  if (!in.has("grace_ms")) return;
  if (rules.graceMeasured) {
    if (in.text("grace_ms", "auto") != "auto")
      in.fail("grace_ms", R"(must be a number of milliseconds or "auto")");
    rules.grace = std::chrono::milliseconds(in.integer("grace_max_ms", kDefaultGraceMaxMs, 0, kGraceMsMax));
  } else {
    rules.grace = std::chrono::milliseconds(in.integer("grace_ms", 0, 0, kGraceMsMax));
  }
  if (rules.backupTrainers > 0) {
    in.fail("grace_ms",
            "excludes backup_trainers: a round that has a quorum closes after the grace period, "
            "with any number of trainers missing");
  }
}

void readFragments(ObjectReader& in, LocalPlan& local) {
  local.fragments = static_cast<uint32_t>(in.integer("fragments", 1, 1, kFragmentsMax));
  local.delay = static_cast<uint32_t>(in.integer("delay", 0, 0, kDelayMax));
  local.blend = in.number("blend", 0, {.min = 0, .max = 1, .maxExclusive = true});
  if (local.fragments > maxFragments(local)) {
    in.fail("fragments",
            fmt::format("must be at most period ({}): each is pushed once per period", local.period));
  } else if (const std::string fault = delayError(local, local.fragments); !fault.empty()) {
    in.fail("delay", fault);
  }
  if (local.blend > 0 && local.delay == 0) {
    in.fail("blend", "requires a delay: without one a trainer takes no step between a push and its result");
  }
}

std::string readDeltas(ObjectReader& in) {
  const std::string codec = in.choice("deltas", "none", {"none", "int8", "int4", "e3m0"});
  return codec == "none" ? "" : codec;
}

void readLate(ObjectReader& in, RoundOptions& options) {
  if (!in.hasObject("late")) {
    if (in.text("late", "drop") != "drop") in.fail("late", R"(must be "drop" or {"rate": a number})");
    return;
  }
  ObjectReader late = in.object("late");
  options.lateRate = late.number("rate", 1, {.min = 0, .max = 1, .minExclusive = true});
  if (!late.has("rate"))
    late.fail("rate", "is required: the weight factor of a contribution for each round that it is late");
  if (!options.aggregator->weighs()) {
    in.fail("late", "with a rate requires aggregator mean or rda; " +
                        std::string(options.aggregator->name()) + " counts all contributions equally");
  }
}

RoundWeights readWeights(ObjectReader& in, const Aggregator& aggregator) {
  const std::string weights = in.choice("weights", "samples", {"samples", "equal", "samples2_per_step"});
  if (in.has("weights") && !aggregator.weighs()) {
    in.fail("weights", "requires aggregator mean or rda; " + std::string(aggregator.name()) +
                           " counts all contributions equally");
  }
  if (weights == "equal") return RoundWeights::equal;
  return weights == "samples" ? RoundWeights::samples : RoundWeights::samples2PerStep;
}

RoundOptions readOptions(ObjectReader& in) {
  RoundOptions options = readRounds(in);
  options.name = "diloco";
  readGrace(in, options.rules);
  options.weights = readWeights(in, *options.aggregator);
  readLate(in, options);
  return options;
}

PolicyPlan planWith(const RoundOptions& options, LocalPlan local) {
  local.endsEarly = options.rules.grace.has_value();
  return {.make = [options](const PolicyScope& scope) { return std::make_unique<Sync>(scope, options); },
          .local = std::move(local),
          .rounds = planOf(options),
          .needsWholeGradient = wholeGradientReason(*options.aggregator)};
}

}  // namespace

PolicyPlan Diloco::read(ObjectReader& in) {
  LocalPlan local = readLocalPlan(in);
  local.inner = readInnerOptimizer(in.object("inner"));
  const RoundOptions options = readOptions(in);
  readFragments(in, local);
  local.deltas = readDeltas(in);
  return planWith(options, std::move(local));
}

PolicyPlan Diloco::readInGroup(ObjectReader& in, const LocalPlan& topLevel) {
  refuseModifiers(in);
  for (const std::string_view key : {"period", "inner", "fragments", "delay", "blend", "deltas"}) {
    in.refuse(key,
              "belongs to the top level: local steps cover the whole model, and each group is a part "
              "of it that trainers exchange");
  }
  return planWith(readOptions(in), topLevel);
}

}  // namespace psd
