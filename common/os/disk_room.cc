#include "common/os/disk_room.h"

#include <sys/statvfs.h>

namespace psd {

std::optional<DiskRoom> diskRoom(const std::string& path) {
  struct statvfs info {};
  if (statvfs(path.c_str(), &info) != 0) return std::nullopt;
  return DiskRoom{uint64_t{info.f_bavail} * info.f_frsize, uint64_t{info.f_blocks} * info.f_frsize};
}

}  // namespace psd
