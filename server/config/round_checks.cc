#include "server/config/round_checks.h"

#include <string>

namespace psd {

Status checkRounds(const DaemonConfig& config, std::span<const std::shared_ptr<Backend>> devices,
                   uint32_t trainers) {
  if (trainers != 0) PSD_RETURN_IF_ERROR(checkTrainersSuffice(config.groups, trainers));
  for (const GroupConfig& group : config.groups) {
    const auto& compares = group.policy.plan.rounds.compares;
    if (!compares) continue;
    const uint32_t most = compares(trainers);
    for (const auto& device : devices) {
      if (most <= device->comparedGradientsMax()) continue;
      return {ErrorCode::invalidArgument,
              "with a world size of " + std::to_string(trainers) + " the aggregator of policy '" +
                  group.policy.type + "' sets " + std::to_string(most) +
                  " gradients of a round against one another, and " + device->describe() + " takes " +
                  std::to_string(device->comparedGradientsMax()) +
                  "; use device cpu, aggregator mean or more backup_trainers"};
    }
  }
  return {};
}

}  // namespace psd
