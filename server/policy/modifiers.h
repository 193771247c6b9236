#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/config/object_reader.h"

namespace psd {

/// How staleness τ lowers the learning rate, and from when on a gradient is too old. A value type.
struct StalenessRule {
  enum class Rate {
    none,
    inverse,  ///< η / τ, and η for τ ≤ 1 (Zhang, Gupta, Lian, Liu 2016)
    damped,   ///< η / (1 + a·τ)
  };
  Rate rate = Rate::none;
  double damping = 0.1;         ///< a
  std::optional<uint64_t> max;  ///< a gradient that is staler is dropped

  /// Factor of the learning rate at this staleness.
  double factor(uint64_t staleness) const;
  bool tooOld(uint64_t staleness) const { return max && staleness > *max; }
};

/// DC-ASGD (Zheng et al. 2017); GradientChange::pulled tells what it does. A value type.
struct DelayCompensation {
  double lambda = 0;  ///< 0: none
  bool adaptive = false;
};

/// Bounds of a gradient, taken as it came, before compensation. At most one of them. A value type.
struct Clip {
  std::optional<double> norm;   ///< of the whole group's gradient
  std::optional<double> value;  ///< of each element

  /// Factor of a gradient with this ‖g‖².
  double scale(double squaredNorm) const;
};

/// What a policy of any type may do to gradients and rates besides. A value type.
struct Modifiers {
  StalenessRule staleness;
  DelayCompensation delay;
  Clip clip;

  bool changesGradients() const { return delay.lambda != 0 || clip.norm || clip.value; }
  /// Why embedding tables do not go with the modifiers; empty: they do.
  std::string refusesTables() const {
    if (delay.lambda == 0) return {};
    return "delay_compensation needs the values that each trainer pulled, and nobody keeps those of rows";
  }
  /// Why they need a gradient's elements all together; empty: they do not.
  std::string needsWholeGradient() const { return clip.norm ? "clip.norm is of the whole gradient" : ""; }
};

/// Why a policy does not take some of the modifiers; empty: it takes them.
struct ModifierRefusals {
  std::string_view staleness, delayCompensation, clip, clipNorm;
};

/// Reads the keys "staleness", "delay_compensation" and "clip" of a policy, where they are given. Problems go
/// to the reader.
Modifiers readModifiers(ObjectReader& in, const ModifierRefusals& refusals = {});

}  // namespace psd
