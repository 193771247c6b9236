#pragma once

#include <string>
#include <vector>

#include "common/status/status.h"
#include "server/checkpoint/manifest.h"
#include "server/config/parameter_groups.h"

namespace psd {

/// Optimizers that trainers send with their model, as the JSON of writeOptimizer(); empty: none.

/// Whether a trainer's optimizer is that of the groups. If takesTrainersOptimizer(), pushes carry the
/// numbers, so only type and flags must be equal. ErrorCode::invalidArgument names the first difference.
Status checkTrainersOptimizer(const std::string& trainers, const std::vector<GroupConfig>& groups);

/// Whether the groups have these optimizers.
bool sameOptimizers(const std::vector<GroupConfig>& groups, const std::vector<Optimizer>& optimizers);

/// The optimizers of a checkpoint, by parameter group.
std::vector<Optimizer> optimizersOf(const Manifest& manifest);

}  // namespace psd
