#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/status/status.h"

namespace psd {

/// A read-only memory mapping of a file; trainers on one machine that map the same file share its pages.
/// Truncating the file while it is mapped kills the process (SIGBUS). Immutable, so thread-safe.
class MappedFile {
 public:
  /// Errors name the path.
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
