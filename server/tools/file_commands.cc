#include "server/tools/file_commands.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "common/cli/setting.h"
#include "common/os/text_file.h"
#include "common/text/text.h"
#include "server/checkpoint/blame.h"
#include "server/checkpoint/replay.h"
#include "server/tools/saved_files.h"

namespace psd {
namespace {

constexpr std::string_view kRankPrefix = "rank=";

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

/// The checkpoint that `path` names, or the newest complete one in that folder. Appends notes to `out`.
Result<Checkpoint> checkpointAt(Env& env, const std::string& path, std::string& out) {
  PSD_ASSIGN_OR_RETURN(const bool named, isCheckpoint(env, path));
  if (named) return openCheckpoint(env, path);
  if (nameIn(path) == kManifestName) return openCheckpoint(env, folderOf(path));
  if (!env.list(path).ok()) {
    return Error{ErrorCode::io, "'" + path + "' is a file; expected a checkpoint or a folder of them"};
  }
  PSD_ASSIGN_OR_RETURN(NewestCheckpoint newest, newestCheckpoint(env, path));
  for (const NewestCheckpoint::Damaged& damaged : newest.damaged) {
    out += "skipped a checkpoint: " + damaged.why.message + "\n";
  }
  if (!newest.checkpoint) return noCheckpointIn(path);
  return std::move(*newest.checkpoint);
}

std::optional<Version> versionOf(std::optional<uint64_t> update) {
  return update ? std::optional(Version{*update}) : std::nullopt;
}

/// Prints the versions of the shards, and writes the model to `to` unless that is empty.
Status printRebuilt(Env& env, ParameterStore& store, const std::string& to) {
  std::string versions;
  for (size_t i = 0; i < store.blockCount(); i++) {
    versions += (i == 0 ? "" : ", ") + std::to_string(store.block(i).version().value);
  }
  print(fmt::format("model '{}', shards at update {}\n", store.model().name, versions));
  if (to.empty()) return {};
  PSD_RETURN_IF_ERROR(saveParameters(env, to, store));
  print(fmt::format("wrote it to '{}'\n", to));
  return {};
}

}  // namespace

Result<TableFormat> readTableFormat(const std::optional<std::string>& name) {
  if (!name) return TableFormat::safetensors;
  const auto found = std::ranges::find(kTableFormats, *name);
  if (found != kTableFormats.end()) return static_cast<TableFormat>(found - kTableFormats.begin());
  return Error{ErrorCode::invalidArgument, "--format: '" + printable(*name) + "' is not a format; expected " +
                                               joined(kTableFormats, ", ")};
}

Status exportModel(Env& env, const std::string& path, const std::string& table, const std::string& to,
                   TableFormat format) {
  PSD_RETURN_IF_ERROR(checkExists(env, path));
  std::string out;
  const Status exported = retryBesideDaemon(env, path, [&]() -> Status {
    out.clear();
    PSD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, checkpointAt(env, path, out));
    const uint64_t number = checkpoint.manifest.number;
    if (table.empty()) {
      PSD_RETURN_IF_ERROR(exportCheckpoint(env, checkpoint, to));
      out += fmt::format("wrote model '{}' of checkpoint {} to '{}'\n", checkpoint.manifest.model.name,
                         number, to);
      return {};
    }
    PSD_ASSIGN_OR_RETURN(const ExportedTable exported, exportTable(env, checkpoint, table, format, to));
    out +=
        fmt::format("wrote table '{}' of checkpoint {} to '{}': {} row(s), {} value(s) that are not zero\n",
                    table, number, to, exported.rows, exported.nonZeroValues);
    return {};
  });
  print(out);
  return exported;
}

Status replay(Env& env, const std::string& folder, std::optional<uint64_t> until, const std::string& to) {
  PSD_RETURN_IF_ERROR(checkDurabilityPath(env, folder));
  std::unique_ptr<ParameterStore> store;
  PSD_RETURN_IF_ERROR(retryBesideDaemon(env, folder, [&]() -> Status {
    PSD_ASSIGN_OR_RETURN(store, rebuild(env, folder, versionOf(until)));
    return {};
  }));
  return printRebuilt(env, *store, to);
}

Result<ReplayChoice> readReplayChoice(const std::vector<std::string>& without,
                                      const std::vector<std::string>& only) {
  if (without.empty() && only.empty()) return ReplayChoice();
  if (!without.empty() && !only.empty()) {
    return Error{ErrorCode::invalidArgument, "--without and --only exclude each other; give one"};
  }
  const auto what = only.empty() ? ReplayChoice::What::without : ReplayChoice::What::only;
  const std::string flag(flagOf(what));
  std::set<Rank> ranks;
  for (const std::string& text : only.empty() ? without : only) {
    if (!text.starts_with(kRankPrefix)) {
      return Error{ErrorCode::invalidArgument,
                   flag + ": '" + printable(text) + "' names no trainer; expected rank=N, as in rank=3"};
    }
    PSD_ASSIGN_OR_RETURN(const uint64_t rank,
                         parseInteger({flag + " rank", text.substr(kRankPrefix.size())}, 0, UINT32_MAX));
    ranks.insert(Rank{static_cast<uint32_t>(rank)});
  }
  return ReplayChoice(what, std::move(ranks));
}

Status replayChosen(Env& env, const std::string& folder, std::optional<uint64_t> until, const std::string& to,
                    const ReplayChoice& choice, const std::string& blame) {
  PSD_RETURN_IF_ERROR(checkDurabilityPath(env, folder));
  CounterfactualModel model;
  std::optional<Blame> moves;
  PSD_RETURN_IF_ERROR(retryBesideDaemon(env, folder, [&]() -> Status {
    const auto watch = [&](const ParameterStore& store) -> ReplayWatcher* {
      if (blame.empty()) return nullptr;
      return &moves.emplace(store);
    };
    PSD_ASSIGN_OR_RETURN(model, rebuildCounterfactual(env, folder, versionOf(until), choice, watch));
    return {};
  }));
  print(fmt::format("from checkpoint {}{}: applied {} shard updates, left out {}\n", model.checkpoint,
                    model.since.value == 0
                        ? std::string()
                        : fmt::format(", which has all updates up to {}", model.since.value),
                    model.applied, model.leftOut));
  PSD_RETURN_IF_ERROR(printRebuilt(env, *model.store, to));
  if (!moves) return {};
  PSD_RETURN_IF_ERROR(writeTextAtomically(env, blame, moves->json() + "\n"));
  print(fmt::format("wrote which updates moved each tensor most to '{}'\n", blame));
  return {};
}

}  // namespace psd
