#include "server/policy/modifiers.h"

#include <algorithm>
#include <cmath>

namespace psd {
namespace {

constexpr uint64_t kStalenessMax = 1'000'000'000;
constexpr NumberRange kPositive{.min = 1e-9, .max = 1e9};

/// Whether the key is present and supported; a refusal is recorded in the reader.
bool wanted(ObjectReader& in, std::string_view key, std::string_view refusal) {
  if (refusal.empty()) return in.has(key);
  in.refuse(key, refusal);
  return false;
}

StalenessRule readStaleness(ObjectReader in) {
  StalenessRule rule;
  const std::string rate = in.choice("rate", "none", {"none", "inverse", "damped"});
  if (rate == "inverse") rule.rate = StalenessRule::Rate::inverse;
  if (rate == "damped") {
    rule.rate = StalenessRule::Rate::damped;
    rule.damping = in.number("a", rule.damping, kPositive);
  } else if (in.has("a")) {
    in.fail("a", "requires \"rate\": \"damped\"");
  }
  if (in.has("max")) rule.max = in.integer("max", 0, 0, kStalenessMax);
  return rule;
}

DelayCompensation readDelayCompensation(ObjectReader in) {
  DelayCompensation compensation;
  if (!in.has("lambda")) {
    in.fail("lambda", "is required: the strength of the compensation, like 0.04, or 2 with \"adaptive\"");
  }
  compensation.lambda = in.number("lambda", 1, kPositive);
  compensation.adaptive = in.boolean("adaptive", false);
  return compensation;
}

Clip readClip(ObjectReader in, std::string_view normRefusal) {
  Clip clip;
  if (in.has("norm") == in.has("value")) in.fail("", "requires exactly one of norm and value");
  if (wanted(in, "norm", normRefusal)) clip.norm = in.number("norm", 1, kPositive);
  if (in.has("value")) clip.value = in.number("value", 1, kPositive);
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

Modifiers readModifiers(ObjectReader& in, const ModifierRefusals& refusals) {
  Modifiers modifiers;
  if (wanted(in, "staleness", refusals.staleness)) {
    modifiers.staleness = readStaleness(in.object("staleness"));
  }
  if (wanted(in, "delay_compensation", refusals.delayCompensation)) {
    modifiers.delay = readDelayCompensation(in.object("delay_compensation"));
  }
  if (wanted(in, "clip", refusals.clip)) modifiers.clip = readClip(in.object("clip"), refusals.clipNorm);
  return modifiers;
}

}  // namespace psd
