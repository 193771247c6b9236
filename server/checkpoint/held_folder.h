#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "common/os/env.h"

namespace psd {

/// A folder that this process alone works in. Thread-safe.
class HeldFolder {
 public:
  /// Makes it where it is missing. ErrorCode::unavailable, naming it, when another process has it. `env`
  /// outlives the object.
  static Result<std::shared_ptr<HeldFolder>> take(Env& env, const std::string& path);

  /// Where somebody removed or moved it: makes it anew and takes that, so that no other process works there
  /// too. Blocks; nothing is to be written there without.
  Status keep();

 private:
  HeldFolder(Env& env, std::string path) : env_(env), path_(std::move(path)) {}

  Env& env_;
  const std::string path_;
  std::mutex mutex_;                // guards what follows
  std::unique_ptr<FileLock> lock_;  // null: somebody else was faster
};

}  // namespace psd
