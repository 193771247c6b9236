#include "server/tools/repartition_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "common/log/log.h"
#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/checkpoint/repartition.h"
#include "server/checkpoint/store_state.h"
#include "server/move/move_mark.h"
#include "server/publish/version_file.h"
#include "server/publish/weights_copy.h"
#include "server/tools/saved_files.h"

namespace psd {
namespace {

std::string withoutLastSlash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

/// A path without symbolic links, "." and "..", as far as it exists.
std::string plainPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path plain =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return error ? path : withoutLastSlash(plain.string());
}

/// Fails if the model has moved to other daemons, or may have.
Status checkMoves(Env& env, const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(const auto moved, readMoveMark(env, folder, kMovedName));
  if (moved) {
    const std::string there = joined(moved->to, " ", [](const auto& of) { return joined(of, ","); });
    return {ErrorCode::invalidArgument,
            fmt::format("'{}/{}' says that the model has moved to {}: divide what the daemons there have "
                        "saved, or remove the file to continue with the state here",
                        folder, kMovedName, there)};
  }
  PSD_ASSIGN_OR_RETURN(const auto arriving, readMoveMark(env, folder, kArrivingName));
  if (!arriving) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("'{}/{}' says that the model has arrived here by a move that may not be committed: "
                      "start the daemon, which finds out, or remove the file to continue with the state here",
                      folder, kArrivingName)};
}

/// `to`: the folder for the new folders.
Status checkFolders(Env& env, const std::vector<std::string>& folders, const std::string& to) {
  std::set<std::string> seen;
  for (const std::string& folder : folders) {
    PSD_RETURN_IF_ERROR(checkDurabilityPath(env, folder));
    PSD_RETURN_IF_ERROR(checkMoves(env, folder));
    const std::string plain = plainPath(folder);
    if (!seen.insert(plain).second) {
      return {ErrorCode::invalidArgument, quotedPath(folder) + " is given twice"};
    }
    if ((plainPath(to) + "/").starts_with(plain + "/")) {
      return {ErrorCode::invalidArgument,
              fmt::format("--to: {} is in {}, which a current daemon uses; expected a new folder elsewhere",
                          quotedPath(to), quotedPath(folder))};
    }
  }
  return {};
}

std::string describe(const SavedPartition& part) {
  const Manifest& manifest = part.checkpoint.manifest;
  return fmt::format("from       {} in '{}': checkpoint {} of {}{}", manifest.model.partition.toString(),
                     part.folder, manifest.number, manifest.created,
                     part.logged ? ", and the log after it" : "");
}

std::string describe(const WrittenPartition& part) {
  const uint64_t parameters = part.model.parameterCount();
  std::string rows = part.model.tables.empty() ? "" : fmt::format(", {} rows", part.rows);
  return fmt::format("wrote      {} to '{}': {} parameters, {}{}\n", part.model.partition.toString(),
                     part.folder, parameters, bytesText(parameters * sizeof(float)), rows);
}

/// Whether the weights are those that the version had, rounded to its dtypes.
Status checkWeightsOf(const VersionHeader& version, ParameterStore& store) {
  PSD_ASSIGN_OR_RETURN(const ModelState state, stateOf(store));
  std::vector<float> weights(store.layout().totalElements());
  for (size_t i = 0; i < store.shardCount(); i++) {
    std::ranges::copy(state.shards[i].planes.front(),
                      weights.begin() + static_cast<ptrdiff_t>(store.shard(i).range().begin));
  }
  return checkPublishedWeights(version, store.layout(), weights);
}

/// The moment of a published version, of which each folder has the part.
Result<SavedMoment> momentOf(Env& env, const SavedPartitions& saved, uint64_t number) {
  SavedMoment moment;
  const auto headers = std::make_shared<std::vector<VersionHeader>>();
  for (const SavedPartition& part : saved.parts()) {
    const std::string folder = part.folder + "/versions", path = versionPath(folder, number);
    PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> there, listVersions(env, folder));
    if (std::ranges::find(there, number) == there.end()) {
      return Error{ErrorCode::invalidArgument,
                   fmt::format("{} has no version {}; its versions: {}", quotedPath(folder), number,
                               there.empty() ? "none" : joined(there, ", ", [](uint64_t each) {
                                 return std::to_string(each);
                               }))};
    }
    PSD_ASSIGN_OR_RETURN(headers->emplace_back(), readVersionHeader(env, path));
    const VersionInfo &first = headers->front().info, &info = headers->back().info;
    const size_t parts = std::max<size_t>(info.parts, 1);
    if (parts != saved.parts().size() || info.part + 1 != headers->size() ||
        info.momentId != first.momentId) {
      return Error{
          ErrorCode::invalidArgument,
          fmt::format("{} is not of the same moment as in {}: choose a version that psd versions lists",
                      quotedPath(path), quotedPath(saved.parts().front().folder))};
    }
    if (info.shardVersions.empty()) {
      return Error{
          ErrorCode::invalidArgument,
          fmt::format(
              "{} is {}: checkpoints and log cannot rebuild it", quotedPath(path),
              info.moment == VersionMoment::live ? "live" : "older than the move of the model to here")};
    }
    std::vector<Version>& ends = moment.ends.emplace_back();
    for (const uint64_t version : info.shardVersions) ends.push_back({version});
  }
  moment.check = [headers](size_t partition, ParameterStore& store) {
    return checkWeightsOf((*headers)[partition], store);
  };
  return moment;
}

}  // namespace

Status repartitionFolders(Env& env, std::vector<std::string> folders, uint32_t daemons, std::string to,
                          bool together, std::optional<uint64_t> published) {
  PSD_RETURN_IF_ERROR(initLogging({}));  // reading reports damage and the end of a log there
  for (std::string& folder : folders) folder = withoutLastSlash(std::move(folder));
  to = withoutLastSlash(std::move(to));
  if (const std::string name = nameIn(to); name.empty() || name == "." || name == "..") {
    return {ErrorCode::invalidArgument, "--to: expected the name of a new folder"};
  }
  PSD_RETURN_IF_ERROR(checkFolders(env, folders, to));
  PSD_ASSIGN_OR_RETURN(SavedPartitions saved, SavedPartitions::take(env, folders, together));
  if (published) {
    PSD_ASSIGN_OR_RETURN(SavedMoment moment, momentOf(env, saved, *published));
    PSD_RETURN_IF_ERROR(saved.returnTo(std::move(moment)));
  }
  std::vector<std::string> found;
  for (const SavedPartition& part : saved.parts()) found.push_back(describe(part));
  PSD_ASSIGN_OR_RETURN(const Repartitioned done, repartition(env, saved, daemons, to));
  std::string text;
  for (size_t i = 0; i < found.size(); i++) {
    const Manifest& reached = saved.parts()[i].checkpoint.manifest;
    text += fmt::format("{}, shard 0 at version {}\n", found[i], blocksOf(reached).front()->version.value);
  }
  for (const WrittenPartition& part : done.partitions) text += describe(part);
  for (const std::string& note : done.notes) text += "note       " + note + "\n";
  std::fputs(text.c_str(), stdout);
  return {};
}

}  // namespace psd
