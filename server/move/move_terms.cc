#include "server/move/move_terms.h"

#include <algorithm>

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

/// Bytes of the tensors in a published version.
uint64_t publishedBytes(const ModelSpec& model, const PublishConfig& publish) {
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : model.tensors) {
    bytes += tensor.elementCount() * dtypeBytes(publish.as.value_or(tensor.dtype));
  }
  return bytes;
}

/// `bytes` of versions of the whole model, as far as they are of the part `own` of `whole` bytes.
uint64_t shareOf(uint64_t bytes, uint64_t own, uint64_t whole) {
  if (own == whole) return bytes;
  const double share = static_cast<double>(own) / static_cast<double>(whole);
  return static_cast<uint64_t>(static_cast<double>(bytes) * share);
}

/// Whether the published versions can continue here. `own`: this daemon's partition of `whole`.
Status checkVersions(const VersionTerms& versions, const ModelSpec& whole, const ModelSpec& own,
                     const DaemonConfig& config) {
  if (!config.publish) {
    return refused(
        "publish is absent here, and the previous daemon publishes versions: configure `publish` here");
  }
  if (versions.durable && !config.durability.enabled()) {
    return refused(
        "durability.type is none here, so published versions would be in memory, and the previous daemon "
        "has them on its disk: configure `durability` here");
  }
  const uint64_t each = publishedBytes(own, *config.publish),
                 together = publishedBytes(whole, *config.publish);
  if (each == 0 && together > 0) {
    return refused(
        fmt::format("this daemon would have no tensor, as {}, so there would be no published "
                    "versions: move to fewer daemons",
                    own.partition.toString()));
  }
  // Publishing continues only with room for three.
  const uint64_t all = shareOf(versions.bytes, each, together);
  const uint64_t needed = std::max(all, 3 * each);
  if (needed <= config.limits.versionBytes) return {};
  return {
      ErrorCode::overloaded,
      fmt::format("limits.version_bytes is {} here, and the published versions of the previous daemon, or "
                  "three of them, take {}{}: raise it",
                  config.limits.versionBytes, needed, own.partition.isWhole() ? "" : " as parts")};
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
  const Partition own = config.daemons.partition();
  PSD_ASSIGN_OR_RETURN(const auto cut, partitionModel(whole, own.of));
  const ModelSpec& mine = cut[own.index].spec;
  if (terms.versions) PSD_RETURN_IF_ERROR(checkVersions(*terms.versions, whole, mine, config));
  const PublishConfig* const publish = terms.versions && config.publish ? &*config.publish : nullptr;
  PSD_RETURN_IF_ERROR(checkMoveRules(terms.rules, moveRules(config.groups, publish)));
  PSD_RETURN_IF_ERROR(checkWorld(terms.worldSize, config));
  PSD_RETURN_IF_ERROR(checkCodecs(terms.codecs, config));
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
