#include "server/publish/shared_version_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/os/socket.h"
#include "common/text/quantity.h"
#include "common/text/text.h"

namespace psd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr mode_t kModeBeforeUmask = S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH;
constexpr int kOpensMax = 100, kReadsMax = 10;
constexpr std::chrono::milliseconds kPollMin{1}, kPollMax{20};
// A reader that finds another version active releases a slot at once.
constexpr std::chrono::milliseconds kTransient{200};

Error sharedError(const std::string& path, const std::string& what) {
  return {ErrorCode::invalidArgument, quotedPath(path) + ": " + what};
}

Error sharedSystemError(const std::string& path, const char* what) {
  return sharedError(path, fmt::format("{}: {}", what, std::strerror(errno)));
}

uint64_t capacityFor(uint64_t bytes) {
  return (bytes + SharedHeader::kGrain - 1) / SharedHeader::kGrain * SharedHeader::kGrain;
}

/// Sets or releases a lock of this open file on one byte; false: others have one that conflicts.
Result<bool> setLock(int fd, short type, int64_t byte) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  if (::fcntl(fd, F_OFD_SETLK, &lock) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  return Error{ErrorCode::invalidArgument, std::strerror(errno)};
}

/// Whether a path refers to an open file; nullopt: to none.
std::optional<bool> isAt(const std::string& path, int fd) {
  struct stat named {
  }, opened{};
  if (::lstat(path.c_str(), &named) != 0) return {};
  return ::fstat(fd, &opened) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

}  // namespace

/// One file, mapped and locked as the follower.
class SharedVersionFile::Memory {
 public:
  /// Allocates all of the file, so that no access fails later, and maps it.
  static Result<std::unique_ptr<Memory>> map(const std::string& path, OwnFd fd, uint64_t bytes) {
    const int failed = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
    if (failed != 0) {
      return Error{ErrorCode::io, fmt::format("{}: cannot allocate {} for two versions: {}", quotedPath(path),
                                              bytesText(bytes), std::strerror(failed))};
    }
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) return sharedSystemError(path, "cannot map");
    return std::unique_ptr<Memory>(new Memory(std::move(fd), static_cast<std::byte*>(data), bytes));
  }
  ~Memory() { ::munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  int fd() const { return fd_.get(); }
  SharedHeader& header() { return *reinterpret_cast<SharedHeader*>(data_); }
  const SharedHeader& header() const { return *reinterpret_cast<const SharedHeader*>(data_); }
  std::span<std::byte> slot(uint64_t index) const {
    return {data_ + header().slotAt[index], header().capacity};
  }
  /// Index of the slot that write() writes.
  uint64_t idle() const { return (header().generation + 1) % 2; }

  /// Takes the idle slot from readers.
  bool lockIdle(std::chrono::milliseconds timeout) const {
    const auto until = Clock::now() + timeout;
    std::chrono::milliseconds pause = kPollMin;
    for (;;) {
      const auto locked = setLock(fd(), F_WRLCK, SharedHeader::kSlotLock + static_cast<int64_t>(idle()));
      if (locked.ok() && *locked) return true;
      if (Clock::now() >= until) return false;
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kPollMax);
    }
  }
  void unlockIdle() const {
    static_cast<void>(setLock(fd(), F_UNLCK, SharedHeader::kSlotLock + static_cast<int64_t>(idle())));
  }
  /// The one store that readers see.
  void flip(uint64_t generation) {
    std::atomic_ref(header().generation).store(generation, std::memory_order_release);
  }
  void setReplaced(bool replaced) {
    std::atomic_ref(header().replaced).store(replaced ? 1 : 0, std::memory_order_release);
  }

 private:
  Memory(OwnFd fd, std::byte* data, uint64_t bytes) : fd_(std::move(fd)), data_(data), bytes_(bytes) {}

  const OwnFd fd_;
  std::byte* const data_;
  const uint64_t bytes_;
};

SharedVersionFile::SharedVersionFile(std::string path) : path_(std::move(path)) {}
SharedVersionFile::~SharedVersionFile() = default;

std::string SharedVersionFile::temporary() const { return fmt::format("{}.tmp.{}", path_, ::getpid()); }

Result<std::unique_ptr<SharedVersionFile>> SharedVersionFile::open(std::string path) {
  std::unique_ptr<SharedVersionFile> file(new SharedVersionFile(std::move(path)));
  // Another follower may create, replace or remove the file meanwhile.
  for (int i = 0; i < kOpensMax && !file->memory_; i++) {
    PSD_ASSIGN_OR_RETURN(file->memory_, openMemory(file->path_));
    if (file->memory_) break;
    struct stat info {};
    if (::lstat(file->path_.c_str(), &info) == 0) continue;
    if (errno != ENOENT) return sharedSystemError(file->path_, "cannot open");
    PSD_ASSIGN_OR_RETURN(std::unique_ptr<Memory> created, file->createMemory(0));
    const bool linked = ::link(file->temporary().c_str(), file->path_.c_str()) == 0;
    const int error = errno;
    ::unlink(file->temporary().c_str());
    errno = error;
    if (!linked && error != EEXIST && error != ENOENT) return sharedSystemError(file->path_, "cannot create");
    if (linked) file->memory_ = std::move(created);
  }
  if (!file->memory_) return sharedError(file->path_, "others create and remove it");
  file->memory_->setReplaced(false);
  return file;
}

/// The file at the path, locked; null: there is none, or it is being replaced.
Result<std::unique_ptr<SharedVersionFile::Memory>> SharedVersionFile::openMemory(const std::string& path) {
  OwnFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd.get() < 0 && errno == ENOENT) return std::unique_ptr<Memory>();
  if (fd.get() < 0 && errno == ELOOP) return sharedError(path, "is a symbolic link; name the file itself");
  if (fd.get() < 0) return sharedSystemError(path, "cannot open");
  const auto other = [&](const std::string& why) {
    return sharedError(
        path, fmt::format("is not a file of psd follow --shared: {}; name another, or remove it", why));
  };
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return other("it is no ordinary file");
  const auto locked = setLock(fd.get(), F_WRLCK, SharedHeader::kFollowerLock);
  if (!locked.ok()) return sharedError(path, "cannot lock: " + locked.message());
  const bool moved = !isAt(path, fd.get()).value_or(false);
  if (moved) return std::unique_ptr<Memory>();
  if (!*locked) {
    return Error{ErrorCode::unavailable, quotedPath(path) + " is in use by another psd follow"};
  }
  SharedHeader header;
  const ssize_t bytes = ::pread(fd.get(), &header, sizeof header, 0);
  const auto read = readSharedHeader(
      std::as_bytes(std::span(&header, 1)).first(static_cast<size_t>(std::max<ssize_t>(bytes, 0))),
      static_cast<uint64_t>(info.st_size));
  if (!read.ok()) return other(read.message());
  return Memory::map(path, std::move(fd), header.fileBytes());
}

/// A file beside the path, without a version, with the permissions of the file that it will replace.
Result<std::unique_ptr<SharedVersionFile::Memory>> SharedVersionFile::createMemory(uint64_t capacity) const {
  const std::string path = temporary();
  ::unlink(path.c_str());
  OwnFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kModeBeforeUmask));
  if (fd.get() < 0) return sharedSystemError(path_, "cannot create");
  struct stat before {};
  if (memory_ && ::fstat(memory_->fd(), &before) == 0) {
    const bool owned = ::fchown(fd.get(), before.st_uid, before.st_gid) == 0;
    static_cast<void>(::fchmod(fd.get(), before.st_mode & (owned ? 0777u : 0707u)));
  }
  const auto locked = setLock(fd.get(), F_WRLCK, SharedHeader::kFollowerLock);
  const SharedHeader header = SharedHeader::ofCapacity(capacity);
  auto memory = locked.ok()
                    ? Memory::map(path_, std::move(fd), header.fileBytes())
                    : Result<std::unique_ptr<Memory>>(sharedError(path_, "cannot lock: " + locked.message()));
  if (!memory.ok()) {
    ::unlink(path.c_str());
    return memory;
  }
  (*memory)->header() = header;
  return memory;
}

Result<std::optional<VersionHeader>> SharedVersionFile::active() const {
  const SharedHeader& header = memory_->header();
  if (header.generation == 0) return std::optional<VersionHeader>();
  const SharedSlot& slot = header.active();
  auto verified =
      verifyVersion(memory_->slot(header.generation % 2).first(slot.bytes), slot.number, slot.history);
  if (!verified.ok()) {
    return Error{ErrorCode::io, fmt::format("{}: version {} is damaged: {}", quotedPath(path_), slot.number,
                                            verified.message())};
  }
  return std::optional(*std::move(verified));
}

bool SharedVersionFile::awaitReaders(std::chrono::milliseconds timeout) const {
  if (!memory_->lockIdle(timeout)) return false;
  memory_->unlockIdle();
  return true;
}

uint64_t SharedVersionFile::idleNumber() const { return memory_->header().slots[memory_->idle()].number; }

/// Fills the idle slot, verifies it and records what it is; readers do not see it yet.
Status SharedVersionFile::fillSlot(Memory& memory, const VersionImage& image, uint64_t generation) const {
  SharedSlot& slot = memory.header().slots[generation % 2];
  const std::span<std::byte> bytes = memory.slot(generation % 2).first(image.info.bytes);
  slot.generation = 0;
  uint64_t at = 0;
  PSD_RETURN_IF_ERROR(image.passTo([&](std::span<const std::byte> part) -> Status {
    if (part.size() > bytes.size() - at) return {ErrorCode::internal, "a version is larger than it says"};
    std::ranges::copy(part, bytes.begin() + static_cast<ptrdiff_t>(at));
    at += part.size();
    return {};
  }));
  const auto verified = verifyVersion(bytes, image.info.number, image.info.history);
  if (!verified.ok()) {
    return {ErrorCode::io, fmt::format("{}: version {} is damaged in the file: {}", quotedPath(path_),
                                       image.info.number, verified.message())};
  }
  slot.number = image.info.number;
  slot.history = image.info.history;
  slot.bytes = image.info.bytes;
  slot.generation = generation;
  return {};
}

Status SharedVersionFile::checkInPlace(bool& missing) const {
  const auto inPlace = isAt(path_, memory_->fd());
  missing = !inPlace;
  if (inPlace.value_or(true)) return {};
  return sharedError(path_, "another program has replaced the file of this follower");
}

Status SharedVersionFile::write(const VersionImage& image) {
  bool missing = false;
  PSD_RETURN_IF_ERROR(checkInPlace(missing));
  const uint64_t generation = memory_->header().generation + 1, capacity = capacityFor(image.info.bytes);
  if (missing || capacity != memory_->header().capacity) {
    PSD_ASSIGN_OR_RETURN(std::unique_ptr<Memory> memory, createMemory(capacity));
    const Status filled = fillSlot(*memory, image, generation);
    if (!filled.ok()) {
      ::unlink(temporary().c_str());
      return filled;
    }
    memory->flip(generation);
    return replaceBy(std::move(memory), missing);
  }
  if (!memory_->lockIdle(kTransient)) {
    return {ErrorCode::overloaded,
            fmt::format("{}: a reader holds version {}", quotedPath(path_), idleNumber())};
  }
  const Status filled = fillSlot(*memory_, image, generation);
  memory_->unlockIdle();  // orders the bytes before the flip for readers, which lock
  if (filled.ok()) memory_->flip(generation);
  return filled;
}

Status SharedVersionFile::replaceBy(std::unique_ptr<Memory> memory, bool missing) {
  // Before the new file is in place, so that readers of the old one look for it even if this process dies.
  memory_->setReplaced(true);
  const std::string from = temporary();
  const bool done =
      (missing ? ::link(from.c_str(), path_.c_str()) : ::rename(from.c_str(), path_.c_str())) == 0;
  const int error = errno;
  if (missing || !done) ::unlink(from.c_str());
  if (!done) {
    memory_->setReplaced(false);
    errno = error;
    return sharedSystemError(path_, "cannot replace");
  }
  memory_ = std::move(memory);
  return {};
}

bool isSharedVersionFile(std::span<const std::byte> bytes) {
  const auto magic = std::as_bytes(std::span(SharedHeader::kMagic));
  return bytes.size() >= magic.size() && std::ranges::equal(bytes.first(magic.size()), magic);
}

Result<std::optional<VersionHeader>> readSharedVersion(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<ReadableFile> file, env.open(path));
  std::vector<std::byte> start(std::min<uint64_t>(file->size(), sizeof(SharedHeader))), image;
  Error last;
  for (int i = 0; i < kReadsMax; i++) {
    PSD_RETURN_IF_ERROR(file->read(0, start));
    const auto header = readSharedHeader(start, file->size());
    if (!header.ok()) {
      last = {ErrorCode::io, quotedPath(path) + ": " + header.message()};
      continue;
    }
    if (header->generation == 0) return std::optional<VersionHeader>();
    try {
      image.resize(header->active().bytes);
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::overloaded, "out of memory: cannot read " + quotedPath(path)};
    }
    PSD_RETURN_IF_ERROR(file->read(header->slotAt[header->generation % 2], image));
    auto verified = verifyVersion(image, header->active().number, header->active().history);
    if (verified.ok()) return std::optional(*std::move(verified));
    last = {ErrorCode::io, quotedPath(path) + " is damaged: " + verified.message()};
  }
  return last;
}

}  // namespace psd
