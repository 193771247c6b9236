#include "server/daemon/file_commands.h"

#include <cstdio>

#include <fmt/format.h>

#include "server/checkpoint/replay.h"
#include "server/daemon/saved_files.h"

namespace psd {
namespace {

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

/// The checkpoint that `path` names, or the newest whole one in it. `out`: what there is to say.
Result<Checkpoint> checkpointAt(Env& env, const std::string& path, std::string& out) {
  PSD_ASSIGN_OR_RETURN(const bool named, isCheckpoint(env, path));
  if (named) return openCheckpoint(env, path);
  if (nameIn(path) == kManifestName) return openCheckpoint(env, folderOf(path));
  if (!env.list(path).ok()) {
    return Error{ErrorCode::io, "'" + path + "' is a file; expected a checkpoint or a folder of them"};
  }
  PSD_ASSIGN_OR_RETURN(NewestCheckpoint newest, newestCheckpoint(env, path));
  for (const NewestCheckpoint::Damaged& damaged : newest.damaged) {
    out += "passed over a checkpoint: " + damaged.why.message + "\n";
  }
  if (!newest.checkpoint) return noCheckpointIn(path);
  return std::move(*newest.checkpoint);
}

}  // namespace

Status exportModel(Env& env, const std::string& path, const std::string& table, const std::string& to) {
  PSD_RETURN_IF_ERROR(checkExists(env, path));
  std::string out;
  const Status exported = besideDaemon(env, path, [&]() -> Status {
    out.clear();
    PSD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, checkpointAt(env, path, out));
    PSD_RETURN_IF_ERROR(table.empty() ? exportCheckpoint(env, checkpoint, to)
                                      : exportTable(env, checkpoint, table, to));
    const std::string what =
        table.empty() ? fmt::format("model '{}'", checkpoint.manifest.model.name) : "table '" + table + "'";
    out += fmt::format("wrote {} of checkpoint {} to '{}'\n", what, checkpoint.manifest.number, to);
    return {};
  });
  print(out);
  return exported;
}

Status replay(Env& env, const std::string& folder, std::optional<uint64_t> until, const std::string& to) {
  PSD_RETURN_IF_ERROR(checkExists(env, folder));
  PSD_ASSIGN_OR_RETURN(const bool oneCheckpoint, isCheckpoint(env, folder));
  if (oneCheckpoint || !env.list(folder).ok()) {
    return {ErrorCode::io, "'" + folder + "' is " + (oneCheckpoint ? "one checkpoint" : "a file") +
                               "; expected the folder with checkpoints and log, durability.path"};
  }
  std::unique_ptr<ParameterStore> store;
  PSD_RETURN_IF_ERROR(besideDaemon(env, folder, [&]() -> Status {
    PSD_ASSIGN_OR_RETURN(store, rebuild(env, folder, until ? std::optional(Version{*until}) : std::nullopt));
    return {};
  }));
  std::string versions;
  for (size_t i = 0; i < store->blockCount(); i++) {
    versions += (i == 0 ? "" : ", ") + std::to_string(store->block(i).version().value);
  }
  print(fmt::format("model '{}', shards at update {}\n", store->model().name, versions));
  if (to.empty()) return {};
  PSD_RETURN_IF_ERROR(saveParameters(env, to, *store));
  print(fmt::format("wrote it to '{}'\n", to));
  return {};
}

}  // namespace psd
