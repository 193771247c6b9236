#include "server/config/world_size.h"

#include <string>

namespace psd {

namespace {

void readBounds(ConfigReader& in, WorldSize& size) {
  in.integer({"max", "Most trainers at the same time; ranks go from 0 to below it."}, size.max, 1,
             kTrainersMax);
  in.require("max", "is needed: the most trainers that may be in at once");
  in.integer(
      {"min",
       "`exit_when_done` ends the daemon once that many ranks have been taken and no trainer is left."},
      size.min, 1, kTrainersMax);
  if (size.min > size.max) in.fail("min", "must be at most max (" + std::to_string(size.max) + ")");
}

}  // namespace

std::optional<WorldSize> readWorldSize(ConfigReader& in) {
  WorldSize size;
  const Key key{
      "world_size",
      "Number of trainers; one that joins with another number is refused. As an object: trainers come and "
      "go within these bounds. Without it the first trainer's number counts, 1 if it names neither rank "
      "nor number. At most `limits.connections`."};
  if (in.describes()) {
    ConfigReader bounds = ConfigReader::describing();
    readBounds(bounds, size);
    using Json = ConfigReader::Json;
    const Json number{{"type", "integer"}, {"minimum", 1}, {"maximum", kTrainersMax}};
    in.declare(key, {{"oneOf", Json::array({number, bounds.schema()})}});
    return {};
  }
  if (!in.has(key.name)) return {};
  if (in.hasObject(key.name)) {
    ConfigReader bounds = in.object(key);
    readBounds(bounds, size);
  } else {
    const std::string right =
        "an integer from 1 to " + std::to_string(kTrainersMax) + " or an object with max";
    size.max = static_cast<uint32_t>(in.values().integer(key.name, 1, 1, kTrainersMax, right));
    size.min = size.max;
  }
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
