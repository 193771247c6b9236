#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/os/env.h"
#include "common/safetensors/published_version.h"
#include "common/status/status.h"
#include "server/publish/shared_layout.h"
#include "server/publish/version_image.h"

namespace psd {

/// The shared-memory file that `psd follow --shared` keeps, as its follower: two slots of which one holds the
/// newest version, and a word that names it (docs/reference/protocol.md). A process that dies at any moment
/// leaves the active version whole. Owned by one thread.
class SharedVersionFile {
 public:
  /// Opens the file, or creates it without a version, and locks it. ErrorCode::unavailable: another follower
  /// has it. ErrorCode::invalidArgument: it is another file, or not accessible. Errors name the file.
  static Result<std::unique_ptr<SharedVersionFile>> open(std::string path);
  ~SharedVersionFile();

  /// The version that readers get, verified; nullopt: there is none. The Error says what is damaged.
  Result<std::optional<VersionHeader>> active() const;

  /// Waits until no reader holds the slot that write() writes. Returns whether that is so.
  bool awaitReaders(std::chrono::milliseconds timeout) const;
  /// Number of the version that is in that slot.
  uint64_t idleNumber() const;

  /// Makes this the active version. Until then, and after an error, the active version is the one before. If
  /// its size is another, a new file replaces this one. ErrorCode::overloaded: a reader holds the slot.
  Status write(const VersionImage& image);

 private:
  class Memory;
  explicit SharedVersionFile(std::string path);
  static Result<std::unique_ptr<Memory>> openMemory(const std::string& path);
  Result<std::unique_ptr<Memory>> createMemory(uint64_t capacity) const;
  Status checkInPlace(bool& missing) const;
  Status fillSlot(Memory& memory, const VersionImage& image, uint64_t generation) const;
  Status replaceBy(std::unique_ptr<Memory> memory, bool missing);
  std::string temporary() const;

  const std::string path_;
  std::unique_ptr<Memory> memory_;
};

/// Whether a file begins as one of these.
bool isSharedVersionFile(std::span<const std::byte> bytes);

/// The active version of such a file, verified, also while a follower writes it; nullopt: it has none.
Result<std::optional<VersionHeader>> readSharedVersion(Env& env, const std::string& path);

}  // namespace psd
