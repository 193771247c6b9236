#include "common/os/shared_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "common/os/huge_pages.h"

namespace psd {
namespace {

// Populating this much is quick. A larger map is populated when touched: populating many gigabytes at once
// would block the caller for seconds.
constexpr uint64_t kPopulatedBytesMax = 64u << 20;

// Seals of Linux 5.1 and 5.14; older headers lack them.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Error systemRefuses(const char* what, uint64_t bytes) {
  return {ErrorCode::overloaded,
          "shared memory of " + std::to_string(bytes) + " bytes: " + what + ": " + std::strerror(errno)};
}

}  // namespace

Result<std::shared_ptr<SharedMemory>> SharedMemory::create(const char* name, uint64_t bytes,
                                                           SharedAccess others) {
  OwnFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return systemRefuses("memfd_create", bytes);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return systemRefuses("ftruncate", bytes);
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return systemRefuses("mmap", bytes);
  std::shared_ptr<SharedMemory> memory(new SharedMemory(std::move(fd), static_cast<std::byte*>(data), bytes));
  // Seal after mapping: this map stays writable, and later writable maps are refused.
  const int writing = others == SharedAccess::readOnly ? F_SEAL_FUTURE_WRITE : 0;
  if (fcntl(memory->fd(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL | writing) != 0) {
    return systemRefuses("sealing", bytes);
  }
  preferHugePages(data, bytes);  // if the system is configured for it: docs/guides/service.md
  return memory;
}

Result<std::shared_ptr<SharedMemory>> SharedMemory::open(int fd, uint64_t bytes, SharedAccess access,
                                                         uint64_t residentBytes) {
  struct stat file {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || fstat(fd, &file) != 0 || bytes == 0 ||
      static_cast<uint64_t>(file.st_size) < bytes) {
    return Error{ErrorCode::protocolMismatch,
                 "the shared memory is not a sealed file of at least " + std::to_string(bytes) + " bytes"};
  }
  const bool writing = access == SharedAccess::readWrite;
  void* const data = mmap(nullptr, bytes, PROT_READ | (writing ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return systemRefuses("mmap", bytes);
  preferHugePages(data, bytes);
  const uint64_t resident = std::min(bytes, residentBytes);
  if (resident <= kPopulatedBytesMax) {
    madvise(data, resident, writing ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  }
  return std::shared_ptr<SharedMemory>(new SharedMemory(OwnFd(), static_cast<std::byte*>(data), bytes));
}

SharedMemory::SharedMemory(OwnFd fd, std::byte* data, uint64_t bytes)
    : fd_(std::move(fd)), data_(data), bytes_(bytes) {}

SharedMemory::~SharedMemory() { munmap(data_, bytes_); }

bool canPassDescriptors(int socket) {
  int domain = 0;
  socklen_t length = sizeof domain;
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
}

}  // namespace psd
