#include "trainer/dataset/mapped_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace psd {

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const auto failed = [&] { return Error{ErrorCode::io, path + ": " + std::strerror(errno)}; };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failed();
  struct stat status {};
  void* data = nullptr;
  bool mapped = fstat(fd, &status) == 0;
  if (mapped && !S_ISREG(status.st_mode)) {
    close(fd);
    return Error{ErrorCode::io, path + ": not a regular file"};
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (mapped && size > 0) {
    data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    mapped = data != MAP_FAILED;
  }
  const Error error = failed();
  close(fd);
  if (!mapped) return error;
  return std::shared_ptr<const MappedFile>(new MappedFile({static_cast<const std::byte*>(data), size}));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace psd
