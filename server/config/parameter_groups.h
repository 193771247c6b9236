#pragma once

#include <cstdint>
#include <optional>
#include <string>
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
  /// Of LocalPlan::fragments, where the policy divides the model by itself: which one, from 0.
  std::optional<uint32_t> fragment = {};

  /// For people: the globs, "others", or "fragment 0".
  std::string name() const;
};

/// Reads `groups` and, as the last group, the top level's `policy` and `optimizer`, which a group that has
/// none shares; of a policy with fragments one group for each. Problems go to the reader.
std::vector<GroupConfig> readGroups(ObjectReader& in);

/// Which group each tensor and each table belongs to. A value type.
struct GroupsOfModel {
  std::vector<uint32_t> ofTensor, ofTable;
};
/// The group of every tensor and table: the first that has a matching glob, or as fragmentsOf() has it.
/// ErrorCode::invalidArgument, with
/// the JSON path, when one of `groups` takes none, or its policy or optimizer is not for what it takes. The
/// last one may be left without any, and of a partition each.
Result<GroupsOfModel> assignGroups(const ModelSpec& model, const std::vector<GroupConfig>& groups);

/// How trainers average the gradients of tensors; nothing: each pushes its own.
std::optional<AllReduceTerms> allReduceOf(const std::vector<GroupConfig>& groups);

/// The policies for people: "hogwild", or where there are several groups "fc*: sync, others: hogwild".
std::string describePolicies(const std::vector<GroupConfig>& groups);
/// The optimizers for people, group by group as describePolicies() has the policies.
std::string describeOptimizers(const std::vector<GroupConfig>& groups);

}  // namespace psd
