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

  /// Makes the folder anew where somebody removed or moved it, and takes it, so that no other process works
  /// there too. Blocks. Nothing is to be written to the folder without this call before.
  Status keep();

 private:
  HeldFolder(Env& env, std::string path) : env_(env), path_(std::move(path)) {}

  Env& env_;
  const std::string path_;
  std::mutex mutex_;                // guards what follows
  std::unique_ptr<FileLock> lock_;  // null: somebody else was faster
};

}  // namespace psd
