#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "common/os/env.h"

namespace psd {

/// A folder locked by this process. Thread-safe.
class LockedFolder {
 public:
  /// Creates the folder if missing and locks it. ErrorCode::unavailable, naming the folder, if another
  /// process holds it. `key`: of the configuration, for errors. `env` outlives the object.
  static Result<std::shared_ptr<LockedFolder>> take(Env& env, const std::string& path,
                                                    const std::string& key = "durability.path");

  /// Recreates and relocks the folder if it was removed or moved, so that no other process works in it too.
  /// Blocks. Must be called before every write to the folder.
  Status keep();

 private:
  LockedFolder(Env& env, std::string path, std::string key)
      : env_(env), path_(std::move(path)), key_(std::move(key)) {}

  Env& env_;
  const std::string path_, key_;
  std::mutex mutex_;                // guards the members below
  std::unique_ptr<FileLock> lock_;  // null: another process took the folder
};

}  // namespace psd
