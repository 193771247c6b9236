#include "server/config/world_size.h"

#include <string>

namespace psd {

WorldSize readWorldSize(ObjectReader& in) {
  WorldSize size;
  if (!in.hasObject("world_size")) {
    size.max = static_cast<uint32_t>(in.integer("world_size", 1, 1, kTrainersMax));
    size.min = size.max;
    return size;
  }
  ObjectReader bounds = in.object("world_size");
  if (!bounds.has("max")) bounds.fail("max", "is needed: the most trainers that may be in at once");
  size.max = static_cast<uint32_t>(bounds.integer("max", 1, 1, kTrainersMax));
  size.min = static_cast<uint32_t>(bounds.integer("min", 1, 1, kTrainersMax));
  if (size.min > size.max) bounds.fail("min", "must be at most max (" + std::to_string(size.max) + ")");
  return size;
}

Status checkTrainersSuffice(const std::vector<GroupConfig>& groups, uint32_t trainers) {
  for (const GroupConfig& group : groups) {
    const RoundPlan& rounds = group.policy.plan.rounds;
    if (rounds.backupTrainers >= trainers) {
      return {ErrorCode::invalidArgument,
              std::to_string(trainers) + " trainers and " + std::to_string(rounds.backupTrainers) +
                  " backup_trainers of policy '" + group.policy.type +
                  "': a round would take one gradient and drop the others; expected fewer backup_trainers"};
    }
    const uint32_t needed = rounds.minTrainers;
    if (needed <= trainers) continue;
    return {ErrorCode::invalidArgument, std::to_string(trainers) +
                                            " trainers never begin a round of policy '" + group.policy.type +
                                            "', which waits for " + std::to_string(needed) +
                                            " (start_trainers, quorum or its aggregator)"};
  }
  return {};
}

}  // namespace psd
