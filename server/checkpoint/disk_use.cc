#include "server/checkpoint/disk_use.h"

#include <memory>
#include <vector>

#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/log_format.h"

namespace psd {
namespace {

uint64_t sizeOf(Env& env, const std::string& path) {
  const auto file = env.open(path);
  return file.ok() ? (*file)->size() : 0;
}

}  // namespace

DiskUse diskUse(Env& env, const std::string& folder) {
  DiskUse use;
  if (const auto names = env.list(folder); names.ok()) {
    for (const std::string& name : *names) {
      if (segmentOf(name)) use.log += sizeOf(env, folder + "/" + name);
    }
  }
  const auto checkpoints = listCheckpoints(env, folder, false);
  for (const uint64_t number : checkpoints.ok() ? *checkpoints : std::vector<uint64_t>()) {
    const std::string path = checkpointPath(folder, number);
    const auto files = env.list(path);
    if (!files.ok()) continue;
    for (const std::string& file : *files) use.checkpoints += sizeOf(env, path + "/" + file);
  }
  return use;
}

}  // namespace psd
