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

void readGrace(ConfigReader& in, RoundRules& rules) {
  using Json = ConfigReader::Json;
  const Key kGraceMax{
      "grace_max_ms",
      "With `grace_ms` `auto`: the longest grace, and the grace while no trainer has been missing."};
  in.declare({"grace_ms",
              "A round closes that long after it has a quorum; `auto`: as long as missing trainers have "
              "taken before. Missing trainers are notified and push the steps that they have taken. Without "
              "it a round waits for all of its trainers. Not with `backup_trainers`."},
             {{"oneOf", Json::array({Json{{"type", "integer"}, {"minimum", 0}, {"maximum", kGraceMsMax}},
                                     Json{{"enum", {"auto"}}}})}});
  rules.graceMeasured = in.hasText("grace_ms") && in.values().text("grace_ms", "") == "auto";
  std::chrono::milliseconds most(kDefaultGraceMaxMs);
  if (in.describes() || rules.graceMeasured) in.integer(kGraceMax, most, 0, kGraceMsMax);
  if (!rules.graceMeasured && in.has("grace_max_ms")) in.fail("grace_max_ms", R"(requires grace_ms "auto")");
  if (!in.has("grace_ms")) return;
  rules.grace = most;
  if (!rules.graceMeasured) {
    const std::string right = fmt::format("\"auto\" or an integer from 0 to {}", kGraceMsMax);
    rules.grace = std::chrono::milliseconds(in.values().integer("grace_ms", 0, 0, kGraceMsMax, right));
  }
  if (rules.backupTrainers > 0) {
    in.fail("grace_ms",
            "excludes backup_trainers: a round that has a quorum closes after the grace period, "
            "with any number of trainers missing");
  }
}

void readFragments(ConfigReader& in, LocalPlan& local) {
  in.integer({"fragments",
              "Number of fragments of the model, each with rounds of its own; one is exchanged every "
              "`period` / `fragments` steps. At most `period` and the number of tensors. Several daemons "
              "need `durability` for them."},
             local.fragments, 1, kFragmentsMax);
  in.integer(
      {"delay", "Steps of a trainer between a push and applying its result. Below `period` / `fragments`."},
      local.delay, 0, kDelayMax);
  in.number({"blend", "Share of the trainer's own parameters when it applies a result. Needs `delay`."},
            local.blend, {.min = 0, .max = 1, .maxExclusive = true});
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

void readDeltas(ConfigReader& in, std::string& deltas) {
  in.choice<std::string>({"deltas",
                          "Trainers pull the difference to what they pulled last, in this codec. Not with "
                          "another `codecs.pull.default` than `none`."},
                         deltas, {{"none", ""}, {"int8", "int8"}, {"int4", "int4"}, {"e3m0", "e3m0"}});
}

void readLateRate(ConfigReader in, double& rate) {
  in.number({"rate", "Factor of the contribution's weight for each round that it is late."}, rate,
            {.min = 0, .max = 1, .minExclusive = true});
  in.require("rate", "is required: the weight factor of a contribution for each round that it is late");
}

void readLate(ConfigReader& in, RoundOptions& options) {
  using Json = ConfigReader::Json;
  const Key key{
      "late",
      "A push whose round has closed is dropped, or with `{\"rate\": r}` counts in the open round, with "
      "its weight times r for each round that it is late; the latter needs aggregator mean or rda."};
  double rate = 1;
  if (in.describes()) {
    ConfigReader late = ConfigReader::describing();
    readLateRate(late, rate);
    in.declare(key, {{"oneOf", Json::array({Json{{"enum", {"drop"}}}, late.schema()})}, {"default", "drop"}});
    return;
  }
  const bool isText = in.hasText(key.name);
  if (!in.has(key.name) || (isText && in.values().text(key.name, "") == "drop")) {
    in.values().text(key.name, "drop");
    return;
  }
  readLateRate(in.object(key, R"("drop" or {"rate": a number})"), rate);
  options.lateRate = rate;
  if (!options.aggregator->weighs()) {
    in.fail("late", "with a rate requires aggregator mean or rda; " +
                        std::string(options.aggregator->name()) + " counts all contributions equally");
  }
}

void readWeights(ConfigReader& in, RoundOptions& options) {
  in.choice<RoundWeights>(
      {"weights",
       "Weights of the contributions with aggregator mean or rda: the samples behind them (of texts the "
       "sequences of one length, so their tokens), all equal, or samples² / steps."},
      options.weights,
      {{"samples", RoundWeights::samples},
       {"equal", RoundWeights::equal},
       {"samples2_per_step", RoundWeights::samples2PerStep}});
  if (in.has("weights") && !options.aggregator->weighs()) {
    in.fail("weights", "requires aggregator mean or rda; " + std::string(options.aggregator->name()) +
                           " counts all contributions equally");
  }
}

RoundOptions readOptions(ConfigReader& in) {
  RoundOptions options = readRounds(in);
  options.name = "diloco";
  readGrace(in, options.rules);
  readWeights(in, options);
  readLate(in, options);
  return options;
}

PolicyPlan viewWith(const RoundOptions& options, LocalPlan local) {
  local.endsEarly = options.rules.grace.has_value();
  return {.make = [options](const PolicyScope& scope) { return std::make_unique<Sync>(scope, options); },
          .local = std::move(local),
          .rounds = planOf(options),
          .needsWholeGradient = wholeGradientReason(*options.aggregator)};
}

}  // namespace

PolicyPlan Diloco::read(ConfigReader in) {
  LocalPlan local = readLocalPlan(in);
  local.inner = readInnerOptimizer(in.object(kInnerKey));
  const RoundOptions options = readOptions(in);
  readFragments(in, local);
  readDeltas(in, local.deltas);
  return viewWith(options, std::move(local));
}

PolicyPlan Diloco::readInGroup(ConfigReader in, const LocalPlan& topLevel) {
  refuseModifiers(in);
  for (const std::string_view key : {"period", "inner", "fragments", "delay", "blend", "deltas"}) {
    in.refuse(key,
              "belongs to the top level: local steps cover the whole model, and each group is a part "
              "of it that trainers exchange");
  }
  return viewWith(readOptions(in), topLevel);
}

}  // namespace psd
