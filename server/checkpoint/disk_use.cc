#include "server/checkpoint/disk_use.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/log_format.h"

namespace psd {
namespace {

uint64_t sizeOf(Env& env, const std::string& path) {
  const auto file = env.open(path);
  return file.ok() ? (*file)->size() : 0;
}

/// The time of a checkpoint in its manifest; nothing: it is unfinished or unreadable.
std::optional<std::string> createdAt(Env& env, const std::string& path, const DiskUse& before) {
  const auto known = std::ranges::find(before.kept, path, &KeptCheckpointStatus::path);
  if (known != before.kept.end()) return known->created;
  auto manifest = readManifest(env, path);
  if (!manifest.ok()) return {};
  return std::move(manifest->created);
}

}  // namespace

DiskUse diskUse(Env& env, const std::string& folder, const DiskUse& before) {
  DiskUse use;
  if (const auto names = env.list(folder); names.ok()) {
    for (const std::string& name : *names) {
      if (segmentOf(name)) use.log += sizeOf(env, folder + "/" + name);
    }
  }
  const auto checkpoints = listCheckpoints(env, folder, false);
  const auto numbers = checkpoints.ok() ? *checkpoints : std::vector<uint64_t>();
  for (size_t i = 0; i < numbers.size(); i++) {
    const std::string path = checkpointPath(folder, numbers[i]);
    const auto files = env.list(path);
    if (!files.ok()) continue;
    uint64_t bytes = 0;
    for (const std::string& file : *files) bytes += sizeOf(env, path + "/" + file);
    use.checkpoints += bytes;
    if (i + DiskUse::kKeptMax < numbers.size()) continue;
    if (auto created = createdAt(env, path, before)) use.kept.push_back({path, std::move(*created), bytes});
  }
  return use;
}

}  // namespace psd
