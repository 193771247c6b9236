#include "server/tools/saved_files.h"

#include <algorithm>
#include <set>

#include "common/text/text.h"
#include "server/checkpoint/log_format.h"
#include "server/checkpoint/manifest.h"

namespace psd {
namespace {

constexpr int kLooksMost = 20;

/// The files that a running daemon removes from its folder over time: finished checkpoints and log segments.
std::set<std::string> removableIn(Env& env, const std::string& folder) {
  std::set<std::string> out;
  const auto names = env.list(folder);
  if (!names.ok()) return out;
  for (const std::string& name : *names) {
    const auto finished = isCheckpoint(env, folder + "/" + name);
    if (segmentOf(name) || (finished.ok() && *finished)) out.insert(name);
  }
  return out;
}

}  // namespace

Result<bool> isCheckpoint(Env& env, const std::string& path) {
  return env.exists(path + "/" + std::string(kManifestName));
}

Error noCheckpointIn(const std::string& folder) {
  return {ErrorCode::io, "there is no whole checkpoint in '" + folder + "'"};
}

Status checkExists(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(path));
  if (there) return {};
  return {ErrorCode::io, "there is no " + quotedPath(path)};
}

Status checkDurabilityPath(Env& env, const std::string& folder) {
  PSD_RETURN_IF_ERROR(checkExists(env, folder));
  PSD_ASSIGN_OR_RETURN(const bool oneCheckpoint, isCheckpoint(env, folder));
  if (!oneCheckpoint && env.list(folder).ok()) return {};
  return {ErrorCode::io, "'" + folder + "' is " + (oneCheckpoint ? "one checkpoint" : "a file") +
                             "; expected the folder with checkpoints and log, durability.path"};
}

std::string nameIn(const std::string& path) { return path.substr(path.rfind('/') + 1); }

Status retryBesideDaemon(Env& env, const std::string& folder, const std::function<Status()>& look) {
  for (int looks = 1;; ++looks) {
    const std::set<std::string> before = removableIn(env, folder);
    const Status status = look();
    if (status.ok() || looks == kLooksMost) return status;
    const std::set<std::string> after = removableIn(env, folder);
    if (std::includes(after.begin(), after.end(), before.begin(), before.end())) return status;
  }
}

}  // namespace psd
