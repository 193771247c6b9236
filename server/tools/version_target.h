#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "common/os/env.h"
#include "common/safetensors/published_version.h"
#include "common/status/status.h"
#include "server/publish/version_image.h"

namespace psd {

/// Where `psd follow` keeps the newest version; no other follower has it meanwhile. Owned by one thread.
class VersionTarget {
 public:
  virtual ~VersionTarget() = default;
  virtual const std::string& file() const = 0;
  /// The version that is there; nullopt: there is none. The Error says what is damaged.
  virtual Result<std::optional<VersionHeader>> verified() = 0;
  /// Replaces it, at once for readers.
  virtual Status write(const VersionImage& image) = 0;
  /// Waits until write() need not wait for readers; the text says for what it still waits, empty: for
  /// nothing.
  virtual std::string awaitReaders(std::chrono::milliseconds timeout) = 0;
};

/// The file model.safetensors in a folder, which is created if missing.
Result<std::unique_ptr<VersionTarget>> openFolderTarget(Env& env, const std::string& folder);
/// A shared-memory file (SharedVersionFile).
Result<std::unique_ptr<VersionTarget>> openSharedTarget(Env& env, const std::string& path);

}  // namespace psd
