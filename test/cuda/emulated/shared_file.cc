#include "test/cuda/emulated/shared_file.h"

#include <cstdio>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace psd::emulated {
namespace {

/// Includes the process id, since descriptor numbers are per process.
std::string nameOf(const SharedFile::Handle& handle) {
  std::string name = "cuda-" + std::to_string(handle.process) + "-";
  for (const uint64_t part : handle.name) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(part));
    name += digits;
  }
  return name;
}

std::string pathOf(int process, int descriptor) {
  return "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
}

/// Whether the file at `path` of /proc is the one that the handle identifies.
bool isFile(const std::string& path, const SharedFile::Handle& handle) {
  char target[256];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  return length > 0 && std::string(target, length) == "/memfd:" + nameOf(handle) + " (deleted)";
}

}  // namespace

std::optional<SharedFile> SharedFile::make(size_t bytes) {
  Handle handle{getpid(), -1, {}};
  if (getrandom(handle.name.data(), sizeof handle.name, 0) != sizeof handle.name) return std::nullopt;
  OwnFd fd(memfd_create(nameOf(handle).c_str(), MFD_CLOEXEC));
  if (fd.get() < 0 || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return std::nullopt;
  handle.descriptor = fd.get();
  return SharedFile(std::move(fd), handle, bytes);
}

std::optional<SharedFile> SharedFile::open(const Handle& handle) {
  const std::string path = pathOf(handle.process, handle.descriptor);
  if (!isFile(path, handle)) return std::nullopt;  // first: opening another file may have side effects
  OwnFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (fd.get() < 0 || !isFile(pathOf(getpid(), fd.get()), handle) || fstat(fd.get(), &status) != 0) {
    return std::nullopt;
  }
  return SharedFile(std::move(fd), handle, static_cast<size_t>(status.st_size));
}

bool SharedFile::mapAt(void* address) const {
  return mmap(address, bytes_, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd_.get(), 0) != MAP_FAILED;
}

}  // namespace psd::emulated
