#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/object_reader.h"
#include "common/types/model_spec.h"
#include "server/optimizer/optimizer.h"
#include "server/policy/policy_config.h"

namespace psd {

/// Tensors and tables with a policy and an optimizer of their own.
struct GroupConfig {
  std::vector<std::string> match;  ///< globs over names; the last group takes what is left
  PolicyChoice policy;
  Optimizer optimizer;
  /// Where trainers exchange a model in parts: which of them the group is, from 0.
  std::optional<uint32_t> fragment = {};
  bool planned = false;  ///< the policy divides the model by itself (LocalPlan::fragments), without `match`

  /// For people: the globs, "others", or "fragment 0".
  std::string name() const;
};

/// Reads `groups` and, as the last group, the top level's `policy` and `optimizer`, which a group that has
/// none shares; of a policy with fragments one group for each. Under a policy whose trainers exchange the
/// model in groups all of them are fragments. Problems go to the reader.
std::vector<GroupConfig> readGroups(ObjectReader& in);

/// The JSON path of a key of a group: "groups[1].policy", or "policy" of the top level.
std::string pathOf(const std::vector<GroupConfig>& groups, size_t group, std::string_view key);

/// Which group each tensor and each table belongs to. A value type.
struct GroupsOfModel {
  std::vector<uint32_t> ofTensor, ofTable;
};
/// The group of every tensor and table: the first that has a matching glob, or as fragmentsOf() has it.
/// ErrorCode::invalidArgument, with the JSON path, when one of `groups` takes none, or its policy or
/// optimizer is not for what it takes. The last one may be left without any, unless it is a fragment, and of
/// a partition each.
Result<GroupsOfModel> assignGroups(const ModelSpec& model, const std::vector<GroupConfig>& groups);

/// How trainers average the gradients of tensors; nothing: each pushes its own.
std::optional<AllReduceTerms> allReduceOf(const std::vector<GroupConfig>& groups);

/// The policies for people: "hogwild", or where there are several groups "fc*: sync, others: hogwild".
std::string describePolicies(const std::vector<GroupConfig>& groups);
/// The optimizers for people, group by group as describePolicies() has the policies.
std::string describeOptimizers(const std::vector<GroupConfig>& groups);

}  // namespace psd
