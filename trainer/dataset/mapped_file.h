#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/status/status.h"

namespace psd {

/// A file's bytes, mapped for reading: trainers of a machine that read the same file share its memory.
/// Whoever cuts the file short while it is mapped ends the process. Immutable, so thread-safe.
class MappedFile {
 public:
  /// The error names the path.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace psd
