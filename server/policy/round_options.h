#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "server/policy/aggregator/aggregator.h"
#include "server/policy/modifiers.h"
#include "server/policy/policy_config.h"
#include "server/policy/sync_rounds.h"

namespace psd {

/// By what a mean weighs the contributions of a round.
enum class RoundWeights {
  samples,         ///< the examples behind each
  equal,           ///< all count alike
  samples2PerStep  ///< samples² / steps: how much was computed, times the size of its batches
};

/// How the rounds of a policy go. A value type.
struct RoundOptions {
  std::string_view name = "sync";  ///< what the policy goes by in the configuration
  std::shared_ptr<const Aggregator> aggregator;
  RoundRules rules;
  Clip clip;  ///< of the gradient that a round makes
  RoundWeights weights = RoundWeights::samples;
  /// A contribution whose round has closed counts in the open one, by its weight times this for each round
  /// that it is late; nothing: it is dropped.
  std::optional<double> lateRate = {};
};

/// Reads the keys that all policies of rounds have: "aggregator", "backup_trainers", "start_trainers",
/// "quorum", "round_timeout_ms", "on_timeout". Problems go to the reader.
RoundOptions readRounds(ObjectReader& in);
/// What the rounds demand of the trainers.
RoundPlan planOf(const RoundOptions& options);
/// PolicyPlan::needsWholeGradient as far as the aggregator makes it so.
std::string wholeGradientFor(const Aggregator& aggregator);

}  // namespace psd
