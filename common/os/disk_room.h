#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace psd {

/// Size of a file system, in bytes. A value type.
struct DiskRoom {
  uint64_t free = 0;  ///< what this user may still write
  uint64_t size = 0;
};

/// The file system that a file or folder is on; empty if it cannot be asked. Blocks.
std::optional<DiskRoom> diskRoom(const std::string& path);

}  // namespace psd
