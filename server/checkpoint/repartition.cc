#include "server/checkpoint/repartition.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "common/plan/model_partitions.h"
#include "common/text/text.h"
#include "server/checkpoint/departed.h"
#include "server/checkpoint/store_at_rest.h"

namespace psd {
namespace {

/// Removes a folder recursively.
Status removeAll(Env& env, const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(folder));
  if (!there) return {};
  PSD_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.list(folder));
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    PSD_RETURN_IF_ERROR(env.list(path).ok() ? removeAll(env, path) : env.remove(path));
  }
  return env.removeFolder(folder);
}

Status checkFree(Env& env, const std::string& to) {
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(to));
  if (!there) return {};
  const auto names = env.list(to);
  if (names.ok() && names->empty()) return {};
  return {ErrorCode::invalidArgument, quotedPath(to) + (names.ok() ? " is not empty; expected a new folder"
                                                                   : " is a file; expected a folder")};
}

/// A partition's store, restored from the checkpoints of the old partitions.
Result<std::unique_ptr<ParameterStore>> makePartition(Env& env, const ModelPartition& partition,
                                                      const std::vector<PlacedCheckpoint>& from) {
  uint32_t shards = ShardPlan::countFor(partition.count);
  for (const auto& [checkpoint, begin] : from) {
    shards = std::max(shards, static_cast<uint32_t>(checkpoint->manifest.shards.size()));
  }
  PSD_ASSIGN_OR_RETURN(auto store, ParameterStore::create(partition.spec, shards, {makeCpuBackend()},
                                                          groupsOf(from, partition.spec, partition.begin)));
  PSD_RETURN_IF_ERROR(restorePartition(env, from, *store, partition.begin).status());
  return store;
}

Result<WrittenPartition> write(Env& env, const ModelPartition& partition,
                               const SavedPartitions::Outcome& from, const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(const auto store, makePartition(env, partition, from.checkpoints));
  const bool lead = partition.spec.partition.index == 0;
  PSD_RETURN_IF_ERROR(saveAtRest(env, folder, 1, *store, from.checkpoints.front().checkpoint->manifest.groups,
                                 from.consistency, lead ? from.samples : std::nullopt));
  if (from.departed) PSD_RETURN_IF_ERROR(writeDeparted(env, folder, *from.departed));
  WrittenPartition written{folder, partition.spec};
  for (size_t i = 0; i < store->rowShardCount(); i++) written.rows += store->rowShard(i).size().rows;
  return written;
}

Result<Repartitioned> writeAll(Env& env, SavedPartitions& saved,
                               const std::vector<ModelPartition>& partitions, const std::string& folder) {
  const std::string scratch = folder + "/replayed";
  PSD_RETURN_IF_ERROR(removeAll(env, folder));  // left by a process that died with the same process id
  PSD_RETURN_IF_ERROR(createFolderDurably(env, folder));
  PSD_ASSIGN_OR_RETURN(const SavedPartitions::Outcome outcome, saved.finish(scratch));
  Repartitioned done{{}, outcome.notes};
  for (size_t i = 0; i < partitions.size(); i++) {
    PSD_ASSIGN_OR_RETURN(done.partitions.emplace_back(),
                         write(env, partitions[i], outcome, fmt::format("{}/partition-{}", folder, i)));
  }
  PSD_RETURN_IF_ERROR(removeAll(env, scratch));
  PSD_RETURN_IF_ERROR(env.syncFolder(folder));
  return done;
}

}  // namespace

Result<Repartitioned> repartition(Env& env, SavedPartitions& saved, uint32_t daemons, const std::string& to) {
  if (saved.parts().size() == daemons && !saved.returns()) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("the folders are of {} daemon{} already", daemons, daemons == 1 ? "" : "s")};
  }
  PSD_ASSIGN_OR_RETURN(const auto partitions, partitionModel(saved.model(), daemons));
  PSD_RETURN_IF_ERROR(checkFree(env, to));
  const std::string unfinished = fmt::format("{}.tmp.{}", to, ::getpid());
  auto done = writeAll(env, saved, partitions, unfinished);
  Status status = done.status();
  if (status.ok()) status = env.rename(unfinished, to);
  if (!status.ok()) {
    static_cast<void>(removeAll(env, unfinished));
    return status.error();
  }
  PSD_RETURN_IF_ERROR(env.syncFolder(folderOf(to)));
  for (size_t i = 0; i < done->partitions.size(); i++) {
    done->partitions[i].folder = fmt::format("{}/partition-{}", to, i);
  }
  return done;
}

}  // namespace psd
