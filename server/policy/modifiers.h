#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/config/config_reader.h"

namespace psd {

/// How staleness τ lowers the learning rate, and the staleness above which a gradient is dropped. A value
/// type.
struct StalenessRule {
  enum class Rate {
    none,
    inverse,  ///< η / τ, and η for τ ≤ 1 (Zhang, Gupta, Lian, Liu 2016)
    damped,   ///< η / (1 + a·τ)
  };
  Rate rate = Rate::none;
  double damping = 0.1;         ///< a
  std::optional<uint64_t> max;  ///< gradients with higher staleness are dropped

  /// Learning-rate factor at this staleness.
  double factor(uint64_t staleness) const;
  bool tooOld(uint64_t staleness) const { return max && staleness > *max; }
};

/// DC-ASGD (Zheng et al. 2017); see GradientChange::pulled. A value type.
struct DelayCompensation {
  double lambda = 0;  ///< 0: disabled
  bool adaptive = false;
};

/// Gradient clipping, applied before delay compensation. At most one of the bounds is set. A value type.
struct Clip {
  std::optional<double> norm;   ///< of the parameter group's whole gradient
  std::optional<double> value;  ///< of each element

  /// Scale factor for a gradient with this ‖g‖².
  double scale(double squaredNorm) const;
};

/// Changes to gradients and learning rates that can be combined with any asynchronous policy. A value type.
struct Modifiers {
  StalenessRule staleness;
  DelayCompensation delay;
  Clip clip;

  bool changesRates() const { return staleness.rate != StalenessRule::Rate::none; }
  bool changesGradients() const { return delay.lambda != 0 || clip.norm || clip.value; }
  /// Why the modifiers do not support embedding tables; empty: they do.
  std::string tablesUnsupported() const {
    if (delay.lambda == 0) return {};
    return "delay_compensation needs the values that each trainer pulled, which are not retained for rows";
  }
  /// Why the modifiers need the whole gradient at once; empty: they do not.
  std::string needsWholeGradient() const { return clip.norm ? "clip.norm needs the whole gradient" : ""; }
};

/// For each modifier, why a policy does not support it; empty: it does.
struct ModifierRefusals {
  std::string_view staleness, delayCompensation, clip, clipNorm;
};

/// Reads the optional keys "staleness", "delay_compensation" and "clip" of a policy. Errors are recorded in
/// the reader.
Modifiers readModifiers(ConfigReader in, const ModifierRefusals& refusals = {});

}  // namespace psd
