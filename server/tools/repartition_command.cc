#include "server/tools/repartition_command.h"

#include <cstdio>
#include <filesystem>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "common/log/log.h"
#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/checkpoint/repartition.h"
#include "server/move/move_mark.h"
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

}  // namespace

Status repartitionFolders(Env& env, std::vector<std::string> folders, uint32_t daemons, std::string to,
                          bool together) {
  PSD_RETURN_IF_ERROR(initLogging({}));  // reading reports damage and the end of a log there
  for (std::string& folder : folders) folder = withoutLastSlash(std::move(folder));
  to = withoutLastSlash(std::move(to));
  if (const std::string name = nameIn(to); name.empty() || name == "." || name == "..") {
    return {ErrorCode::invalidArgument, "--to: expected the name of a new folder"};
  }
  PSD_RETURN_IF_ERROR(checkFolders(env, folders, to));
  PSD_ASSIGN_OR_RETURN(SavedPartitions saved, SavedPartitions::take(env, folders, together));
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
