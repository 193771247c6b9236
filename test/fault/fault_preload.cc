// Fault injection for an unmodified program, loaded with LD_PRELOAD: makes system calls fail for files in one
// folder, and moves the clock.
//
//   FAULT_PRELOAD_FOLDER   the folder; other files, and sockets, are left alone
//   FAULT_PRELOAD_CONTROL  a file with a Control, which the test maps and changes at any time
//                          (test/fault/faulty_machine.py)
//
// A failing disk refuses to write, to read, or both: the calls that psd makes (common/os/env.cc, and those of
// the standard library that list a folder). The test chooses which calls fail, starting with which one, the
// number of failures, and the error. With short writes a failing write takes half of the bytes and the next
// one none, as on a disk that fills up.
//
// Only CLOCK_REALTIME is moved: it is the clock that an operator or NTP sets; CLOCK_MONOTONIC, which leases,
// rounds and checkpoints use, never jumps by definition. Kernel waits until an absolute CLOCK_REALTIME are
// not moved; psd has none.

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {

/// Layout as struct.Struct("<IiIIqqqqQQ"), whose first four fields are calls to syncMs.
struct Control {
  std::atomic<uint32_t> calls;       ///< failing calls, bits of Call; 0: no faults
  std::atomic<int32_t> error;        ///< errno
  std::atomic<uint32_t> shorten;     ///< 1: with short writes
  std::atomic<uint32_t> syncMs;      ///< added duration of each sync
  std::atomic<int64_t> turn;         ///< number of the next of these calls
  std::atomic<int64_t> first, last;  ///< calls with the numbers [first, last) fail
  std::atomic<int64_t> clockShiftS;
  std::atomic<uint64_t> failed;   ///< calls that failed
  std::atomic<uint64_t> shifted;  ///< shifted times returned
};
static_assert(sizeof(Control) == 64 && std::atomic<int64_t>::is_always_lock_free);

enum Call : uint32_t {
  kWrite = 1,
  kDataSync = 2,
  kSync = 4,
  kCreate = 8,
  kRename = 16,
  kRemove = 32,
  kMakeFolder = 64,
  kTruncate = 128,
  kOpen = 256,  // a file or a folder, for reading
  kRead = 512,
  kList = 1024,
  kStat = 2048,  // existence and status
};

/// Null: started without a control file; nothing fails.
Control* control() {
  static Control* const mapped = []() -> Control* {
    const char* path = std::getenv("FAULT_PRELOAD_CONTROL");
    if (!path) return nullptr;
    const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
    if (fd < 0) return nullptr;
    void* at = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? nullptr : static_cast<Control*>(at);
  }();
  return mapped;
}

bool isInFolder(const char* path) {
  static const char* const folder = std::getenv("FAULT_PRELOAD_FOLDER");
  if (!folder) return false;
  const size_t length = std::strlen(folder);
  return std::strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

bool isInFolder(int fd) {
  char name[32] = "/proc/self/fd/", path[4096];
  size_t at = std::strlen(name);
  char digits[12];
  size_t count = 0;
  do {
    digits[count++] = static_cast<char>('0' + fd % 10);
  } while ((fd /= 10) > 0);
  while (count > 0) name[at++] = digits[--count];
  const ssize_t length = readlink(name, path, sizeof path - 1);
  if (length <= 0) return false;
  path[length] = '\0';
  return isInFolder(path);
}

/// Whether this call must fail; sets errno if so.
template <typename Place>  // a path or a descriptor
bool fails(Call call, Place place) {
  Control* const now = control();
  if (!now || (now->calls & call) == 0 || !isInFolder(place)) return false;
  const int64_t turn = now->turn++;
  if (turn < now->first || turn >= now->last) return false;
  now->failed++;
  errno = now->error;
  return true;
}

/// Delays a sync, like a slow disk.
void takeTime(int fd) {
  Control* const now = control();
  const uint32_t ms = now ? now->syncMs.load() : 0;
  if (ms == 0 || !isInFolder(fd)) return;
  const timespec time{ms / 1000, static_cast<long>(ms % 1000) * 1'000'000};
  nanosleep(&time, nullptr);
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int64_t shiftS() {
  Control* const now = control();
  const int64_t shift = now ? now->clockShiftS.load() : 0;
  if (shift != 0) now->shifted++;
  return shift;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* bytes, size_t count) {
  static auto* const real = next<decltype(write)>("write");
  static thread_local bool shortened = false;  // the rest must fail, as part of the same turn
  Control* const now = control();
  if (now && std::exchange(shortened, false) && (now->calls & kWrite) != 0 && isInFolder(fd)) {
    errno = now->error;
    return -1;
  }
  if (!fails(kWrite, fd)) return real(fd, bytes, count);
  shortened = now->shorten != 0 && count > 1;
  return shortened ? real(fd, bytes, count / 2) : -1;
}

int fdatasync(int fd) {
  static auto* const real = next<decltype(fdatasync)>("fdatasync");
  takeTime(fd);
  return fails(kDataSync, fd) ? -1 : real(fd);
}

int fsync(int fd) {
  static auto* const real = next<decltype(fsync)>("fsync");
  takeTime(fd);
  return fails(kSync, fd) ? -1 : real(fd);
}

int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>("open");
  if ((flags & O_CREAT) == 0) {
    const bool reads = (flags & O_ACCMODE) == O_RDONLY;
    return reads && fails(kOpen, path) ? -1 : real(path, flags);
  }
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return fails(kCreate, path) ? -1 : real(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  static auto* const real = next<int(int, const char*, int, ...)>("openat");
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return (flags & O_CREAT) == 0 && fails(kOpen, path) ? -1 : real(folder, path, flags, mode);
}

DIR* opendir(const char* path) {
  static auto* const real = next<decltype(opendir)>("opendir");
  return fails(kOpen, path) ? nullptr : real(path);
}

dirent* readdir(DIR* folder) {
  static auto* const real = next<decltype(readdir)>("readdir");
  return fails(kList, dirfd(folder)) ? nullptr : real(folder);
}

ssize_t read(int fd, void* into, size_t count) {
  static auto* const real = next<decltype(read)>("read");
  return fails(kRead, fd) ? -1 : real(fd, into, count);
}

ssize_t pread(int fd, void* into, size_t count, off_t at) {
  static auto* const real = next<decltype(pread)>("pread");
  return fails(kRead, fd) ? -1 : real(fd, into, count, at);
}

int access(const char* path, int mode) noexcept {
  static auto* const real = next<decltype(access)>("access");
  return fails(kStat, path) ? -1 : real(path, mode);
}

int stat(const char* path, struct stat* into) noexcept {
  static auto* const real = next<int(const char*, struct stat*)>("stat");
  return fails(kStat, path) ? -1 : real(path, into);
}

int fstat(int fd, struct stat* into) noexcept {
  static auto* const real = next<int(int, struct stat*)>("fstat");
  return fails(kStat, fd) ? -1 : real(fd, into);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>("rename");
  return fails(kRename, to) ? -1 : real(from, to);
}

int unlink(const char* path) noexcept {
  static auto* const real = next<int(const char*)>("unlink");
  return fails(kRemove, path) ? -1 : real(path);
}

int rmdir(const char* path) noexcept {
  static auto* const real = next<int(const char*)>("rmdir");
  return fails(kRemove, path) ? -1 : real(path);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real = next<int(const char*, mode_t)>("mkdir");
  return fails(kMakeFolder, path) ? -1 : real(path, mode);
}

int ftruncate(int fd, off_t length) noexcept {
  static auto* const real = next<int(int, off_t)>("ftruncate");
  return fails(kTruncate, fd) ? -1 : real(fd, length);
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const real = next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, time);
  const bool moved = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (result == 0 && moved) time->tv_sec += shiftS();
  return result;
}

int gettimeofday(timeval* time, void* zone) noexcept {
  static auto* const real = next<int(timeval*, void*)>("gettimeofday");
  const int result = real(time, zone);
  if (result == 0) time->tv_sec += shiftS();
  return result;
}

time_t time(time_t* into) noexcept {
  static auto* const real = next<time_t(time_t*)>("time");
  const time_t now = real(nullptr) + shiftS();
  if (into) *into = now;
  return now;
}

}  // extern "C"
