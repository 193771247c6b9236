#include "server/model/trainers_optimizer.h"

#include <fmt/format.h>

#include "server/optimizer/optimizer_config.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

/// The first key with another value, as "lr: 0.1 there, 0.01 here"; empty: none. `flagsOnly`: numbers may
/// differ.
std::string firstDifference(const Optimizer& trainers, const Optimizer& own, bool flagsOnly) {
  const Json theirs = writeOptimizer(trainers), ours = writeOptimizer(own);
  for (const auto& [key, value] : theirs.items()) {
    if (key == "schedule") continue;
    const auto mine = ours.find(key);
    if (mine == ours.end()) continue;
    if (flagsOnly && !value.is_boolean() && key != "type") continue;
    if (*mine != value) return fmt::format("{} {} there, {} here", key, value.dump(), mine->dump());
  }
  return "";
}

Status agree(const Optimizer& trainers, const std::vector<GroupConfig>& groups) {
  const bool takes = takesTrainersOptimizer(groups);
  for (size_t i = 0; i < groups.size(); i++) {
    const std::string path = pathOf(groups, i, "optimizer");
    if (groups[i].policy.plan.local) {
      return {ErrorCode::invalidArgument,
              fmt::format("{}: under policy {} the optimizer of a trainer's steps stays in the trainer", path,
                          groups[i].policy.type)};
    }
    const std::string difference = firstDifference(trainers, groups[i].optimizer, takes);
    if (difference.empty()) continue;
    const std::string what = fmt::format("{}: the trainer has '{}' and this daemon '{}' ({})", path,
                                         trainers.describe(), groups[i].optimizer.describe(), difference);
    if (takes) {
      return {ErrorCode::invalidArgument,
              what +
                  ": this daemon has a model already; give the trainer its optimizer, or start a daemon with "
                  "other data"};
    }
    return {ErrorCode::invalidArgument,
            what +
                ": make them equal, or remove `optimizer` from the daemon's configuration, so that the "
                "trainer's applies"};
  }
  return {};
}

}  // namespace

Status checkTrainersOptimizer(const std::string& trainers, const std::vector<GroupConfig>& groups) {
  if (trainers.empty()) return {};
  PSD_ASSIGN_OR_RETURN(const Optimizer optimizer, parseOptimizer(trainers));
  PSD_RETURN_IF_ERROR(agree(optimizer, groups));
  for (const GroupConfig& group : groups) {
    if (optimizer.slotCount() <= group.optimizer.slotCount()) continue;
    return {ErrorCode::invalidArgument,
            fmt::format(
                "optimizer: the trainer has '{}' and this daemon '{}', without momentum: this daemon has a "
                "model already; give the trainer its optimizer, or start a daemon with other data",
                optimizer.describe(), group.optimizer.describe())};
  }
  return {};
}

Status adoptTrainersOptimizer(const std::string& trainers, std::vector<GroupConfig>& groups) {
  if (!takesTrainersOptimizer(groups)) return checkTrainersOptimizer(trainers, groups);
  PSD_ASSIGN_OR_RETURN(const Optimizer optimizer, parseOptimizer(trainers));
  adoptOptimizers(groups, std::vector<Optimizer>(groups.size(), optimizer));
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
