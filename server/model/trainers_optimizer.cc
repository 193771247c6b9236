#include "server/model/trainers_optimizer.h"

#include <fmt/format.h>

#include "server/optimizer/optimizer_config.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

/// The first key with another value, as "lr: 0.1 there, 0.01 here"; empty: none. `flagsOnly`: numbers may
/// differ, unless the weights are a function of them.
std::string firstDifference(const Optimizer& trainers, const Optimizer& own, bool flagsOnly) {
  const Json theirs = writeOptimizer(trainers), ours = writeOptimizer(own);
  for (const auto& [key, value] : theirs.items()) {
    if (key == "schedule") continue;
    const auto mine = ours.find(key);
    if (mine == ours.end()) continue;
    if (flagsOnly && !own.derivesWeights() && !value.is_boolean() && key != "type") continue;
    if (*mine != value) return fmt::format("{} {} there, {} here", key, value.dump(), mine->dump());
  }
  return "";
}

/// Why a trainer with this optimizer may not train a group; empty: it may.
std::string refusal(const Optimizer& trainers, const GroupConfig& group, bool takes) {
  if (group.policy.plan.local) {
    return fmt::format("under policy {} the optimizer of a trainer's steps stays in the trainer",
                       group.policy.type);
  }
  std::string difference = firstDifference(trainers, group.optimizer, takes);
  if (difference.empty() && trainers.slotCount() > group.optimizer.slotCount())
    difference = "momentum there, none here";
  if (difference.empty()) return "";
  return fmt::format(
      "the trainer has '{}' and this daemon '{}' ({}): {}", trainers.describe(), group.optimizer.describe(),
      difference,
      takes ? "this daemon has a model already; give the trainer its optimizer, or start a daemon with "
              "other data"
            : "make them equal, or remove `optimizer` from the daemon's configuration, so that the "
              "trainer's applies");
}

}  // namespace

Status checkTrainersOptimizer(const std::string& trainers, const std::vector<GroupConfig>& groups) {
  if (trainers.empty()) return {};
  PSD_ASSIGN_OR_RETURN(const Optimizer optimizer, parseOptimizer(trainers));
  const bool takes = takesTrainersOptimizer(groups);
  for (size_t i = 0; i < groups.size(); i++) {
    const std::string why = refusal(optimizer, groups[i], takes);
    if (!why.empty()) return {ErrorCode::invalidArgument, pathOf(groups, i, "optimizer") + ": " + why};
  }
  return {};
}

bool sameOptimizers(const std::vector<GroupConfig>& groups, const std::vector<Optimizer>& optimizers) {
  if (!takesTrainersOptimizer(groups)) return true;
  for (size_t i = 0; i < groups.size(); i++) {
    if (writeOptimizer(groups[i].optimizer) != writeOptimizer(optimizers[i])) return false;
  }
  return true;
}

std::vector<Optimizer> optimizersOf(const Manifest& manifest) {
  std::vector<Optimizer> optimizers;
  for (const ManifestGroup& group : manifest.groups) optimizers.push_back(group.optimizer);
  return optimizers;
}

}  // namespace psd
