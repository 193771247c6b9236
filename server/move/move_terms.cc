#include "server/move/move_terms.h"

#include <spdlog/fmt/fmt.h>

#include "common/plan/model_partitions.h"
#include "server/config/agreed_codecs.h"
#include "server/config/daemon_config.h"
#include "server/config/move_rules.h"

namespace psd {
namespace {

Error refused(const std::string& why) { return {ErrorCode::invalidArgument, why}; }

Status checkWorld(uint32_t worldSize, const DaemonConfig& config) {
  if (config.worldSize && worldSize != 0 && worldSize != config.worldSize->max) {
    return refused(fmt::format("world_size is {} here, {} there; trainers would be rejected",
                               config.worldSize->max, worldSize));
  }
  if (worldSize > config.limits.connections) {
    return refused(fmt::format("limits.connections is {} here, and the trainers' world size {}",
                               config.limits.connections, worldSize));
  }
  return {};
}

Status checkCodecs(const RequestedCodecs& codecs, const DaemonConfig& config) {
  const auto check = [&](const std::string& push, const std::string& pull) -> Status {
    const auto agreed = agreeOnCodecs(config, push, pull);
    if (agreed.ok()) return {};
    return refused("codecs: a trainer's requested codec is not allowed here: " + agreed.message());
  };
  for (const std::string& push : codecs.push) PSD_RETURN_IF_ERROR(check(push, ""));
  for (const std::string& pull : codecs.pull) PSD_RETURN_IF_ERROR(check("", pull));
  return {};
}

/// Minimum size of the partition's tensors with the optimizers' state.
uint64_t bytesOf(const ModelSpec& partition, const DaemonConfig& config, const GroupsOfModel& groups) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < partition.tensors.size(); i++) {
    const Optimizer& optimizer = config.groups[groups.ofTensor[i]].optimizer;
    bytes += partition.tensors[i].elementCount() * sizeof(float) * (1 + optimizer.slotCount());
  }
  return bytes;
}

}  // namespace

Status checkMove(const MoveTerms& terms, const ModelSpec& whole, const ParameterHost& host) {
  const DaemonConfig& config = host.config();
  PSD_RETURN_IF_ERROR(checkMoveRules(terms.rules, moveRules(config.groups)));
  PSD_RETURN_IF_ERROR(checkWorld(terms.worldSize, config));
  PSD_RETURN_IF_ERROR(checkCodecs(terms.codecs, config));
  const Partition own = config.daemons.partition();
  PSD_ASSIGN_OR_RETURN(const auto cut, partitionModel(whole, own.of));
  const ModelSpec& mine = cut[own.index].spec;
  PSD_RETURN_IF_ERROR(checkModel(config, mine));
  PSD_RETURN_IF_ERROR(host.checkConfig(config, terms.worldSize, {}));
  PSD_ASSIGN_OR_RETURN(const GroupsOfModel groups, assignGroups(mine, config.groups));
  const uint64_t bytes = bytesOf(mine, config, groups);
  if (bytes <= config.limits.arrivingBytes) return {};
  return Error{ErrorCode::overloaded, fmt::format("limits.arriving_bytes is {} here, and the parameters with "
                                                  "the optimizer's state need {} bytes",
                                                  config.limits.arrivingBytes, bytes)};
}

}  // namespace psd
