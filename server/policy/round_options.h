#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "server/policy/aggregator/aggregator.h"
#include "server/policy/modifiers.h"
#include "server/policy/policy_config.h"
#include "server/policy/sync_rounds.h"

namespace psd {

/// The weights of contributions in the mean of a round.
enum class RoundWeights {
  samples,         ///< number of samples
  equal,           ///< all contributions count equally
  samples2PerStep  ///< samples² / steps: the amount of computation times the batch size
};

/// Options of the rounds of a policy. A value type.
struct RoundOptions {
  std::string_view name = "sync";  ///< policy name in the configuration
  std::shared_ptr<const Aggregator> aggregator;
  RoundRules rules;
  Clip clip;  ///< of the combined gradient of a round
  RoundWeights weights = RoundWeights::samples;
  /// A contribution whose round has closed counts in the open one; its weight is multiplied by this factor
  /// for each round that it is late. nullopt: it is dropped.
  std::optional<double> lateRate = {};
};

/// Reads the options common to all policies with rounds: "aggregator", "backup_trainers", "start_trainers",
/// "quorum", "round_timeout_ms", "on_timeout". Errors are recorded in the reader.
RoundOptions readRounds(ConfigReader& in);
/// What the rounds require of the trainers.
RoundPlan planOf(const RoundOptions& options);
/// PolicyPlan::needsWholeGradient as required by the aggregator.
std::string wholeGradientReason(const Aggregator& aggregator);

}  // namespace psd
