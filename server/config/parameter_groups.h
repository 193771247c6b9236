#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/config_reader.h"
#include "common/types/model_spec.h"
#include "server/optimizer/optimizer.h"
#include "server/policy/policy_config.h"

namespace psd {

/// Tensors and tables with a policy and an optimizer of their own.
struct GroupConfig {
  std::vector<std::string> match;  ///< globs over names; the last group has the remaining ones
  PolicyChoice policy;
  Optimizer optimizer;
  bool optimizerGiven = false;  ///< for the group or at the top level; else the first trainer may bring one
  /// Where trainers exchange a model in fragments: the number of the group's, from 0.
  std::optional<uint32_t> fragment = {};
  bool planned = false;  ///< a fragment made by the policy (LocalPlan::fragments), without `match`

  /// Human-readable: the globs, "others", or "fragment 0".
  std::string name() const;
};

/// Reads `groups` and, as the last group, the top level's `policy` and `optimizer`, which are the default of
/// the others; of a policy with fragments one group for each. Under a policy whose trainers exchange the
/// model in groups all of them are fragments.
std::vector<GroupConfig> readGroups(ConfigReader& in);

/// The JSON path of a group's key: "groups[1].policy", or "policy" of the top level.
std::string pathOf(const std::vector<GroupConfig>& groups, size_t group, std::string_view key);

/// The group of each tensor and each table. A value type.
struct GroupsOfModel {
  std::vector<uint32_t> ofTensor, ofTable;
};
/// The group of every tensor and table: the first with a matching glob, or by fragmentsOf().
/// ErrorCode::invalidArgument, with the JSON path, when a group has none of them, or its policy or optimizer
/// does not support one of them. Exempt from the former are the last group, unless it is a fragment, and all
/// groups of a partition.
Result<GroupsOfModel> assignGroups(const ModelSpec& model, const std::vector<GroupConfig>& groups);

/// Whether the first trainer's optimizer trains the model, and pushes may carry its hyperparameters: the
/// configuration has none, and trainers push gradients.
bool takesTrainersOptimizer(const std::vector<GroupConfig>& groups);

/// If takesTrainersOptimizer(), sets the groups' optimizers to those of a model: by group or, if the model
/// has another number of groups, to the one optimizer that all of them have.
void adoptOptimizers(std::vector<GroupConfig>& groups, const std::vector<Optimizer>& optimizers);

/// How trainers average the gradients of tensors; nothing: each trainer pushes its own.
std::optional<AllReduceTerms> allReduceOf(const std::vector<GroupConfig>& groups);

/// The policies, human-readable: "hogwild", or with several groups "fc*: sync, others: hogwild".
std::string describePolicies(const std::vector<GroupConfig>& groups);
/// The optimizers in the same form.
std::string describeOptimizers(const std::vector<GroupConfig>& groups);

}  // namespace psd
