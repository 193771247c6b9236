#include "server/policy/modifiers.h"

#include <algorithm>
#include <cmath>

namespace psd {
namespace {

constexpr uint64_t kStalenessMax = 1'000'000'000;
constexpr NumberRange kPositive{.min = 1e-9, .max = 1e9};

/// Whether the policy supports the key; a refusal is recorded in the reader.
bool supported(ConfigReader& in, std::string_view key, std::string_view refusal) {
  if (!refusal.empty()) in.refuse(key, refusal);
  return refusal.empty();
}

StalenessRule readStaleness(ConfigReader in) {
  using Rate = StalenessRule::Rate;
  StalenessRule rule;
  in.alternatives(
      {"rate", "Learning rate of a gradient with staleness τ."}, "none",
      {{"none", "The full rate."},
       {"inverse", "The rate divided by max(τ, 1)."},
       {"damped", "The rate divided by 1 + `a`·τ."}},
      [&rule](ConfigReader& options, std::string_view rate) {
        rule.rate = rate == "inverse" ? Rate::inverse : rate == "damped" ? Rate::damped : Rate::none;
        if (rule.rate == Rate::damped) {
          options.number({"a", "The factor of τ."}, rule.damping, kPositive);
        } else if (options.has("a")) {
          options.fail("a", "requires \"rate\": \"damped\"");
        }
        options.integer(
            {"max",
             "A gradient with a larger staleness is dropped and answered `stale`. Without it none is."},
            rule.max, 0, kStalenessMax);
      });
  return rule;
}

DelayCompensation readDelayCompensation(ConfigReader in) {
  DelayCompensation compensation{.lambda = 1};
  in.number({"lambda", "λ: g + λ·g²·(w − w_pulled) takes the place of g."}, compensation.lambda, kPositive);
  in.require("lambda", "is required: the strength of the compensation, like 0.04, or 2 with \"adaptive\"");
  in.boolean({"adaptive", "λ is divided by the root of a running mean of g²."}, compensation.adaptive);
  return compensation;
}

Clip readClip(ConfigReader in, std::string_view normRefusal) {
  Clip clip;
  if (in.has("norm") == in.has("value")) in.fail("", "requires exactly one of norm and value");
  in.rule({{"minProperties", 1}, {"maxProperties", 1}});
  if (supported(in, "norm", normRefusal)) {
    in.number({"norm",
               "A gradient of the group, or under a policy of rounds the round's, with a larger norm is "
               "scaled down to it."},
              clip.norm, kPositive);
  }
  in.number({"value", "Each element is limited to −value … value."}, clip.value, kPositive);
  return clip;
}

}  // namespace

double StalenessRule::factor(uint64_t staleness) const {
  const auto age = static_cast<double>(staleness);
  switch (rate) {
    case Rate::none: return 1;
    case Rate::inverse: return 1 / std::max(age, 1.0);
    case Rate::damped: return 1 / (1 + damping * age);
  }
  return 1;
}

double Clip::scale(double squaredNorm) const {
  if (!norm || squaredNorm <= *norm * *norm) return 1;
  return *norm / std::sqrt(squaredNorm);
}

Modifiers readModifiers(ConfigReader in, const ModifierRefusals& refusals) {
  Modifiers modifiers;
  if (supported(in, "staleness", refusals.staleness)) {
    const Key key{"staleness", "Lower learning rates for stale gradients, or none of them."};
    if (auto given = in.optionalObject(key)) modifiers.staleness = readStaleness(*given);
  }
  if (supported(in, "delay_compensation", refusals.delayCompensation)) {
    const Key key{"delay_compensation",
                  "DC-ASGD: corrects a gradient for the change of the parameters since they were pulled."};
    if (auto given = in.optionalObject(key)) modifiers.delay = readDelayCompensation(*given);
  }
  if (supported(in, "clip", refusals.clip)) {
    const Key key{"clip", "Bounds gradients, before `delay_compensation`; takes one of its keys."};
    if (auto given = in.optionalObject(key)) modifiers.clip = readClip(*given, refusals.clipNorm);
  }
  return modifiers;
}

}  // namespace psd
