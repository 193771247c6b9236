#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// A file that is written sequentially. Owned by one thread. Data appended since the last sync may be lost,
/// in whole or in part, when the machine fails.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  /// Appends the bytes. After an error some of them may be in the file.
  virtual Status append(std::span<const std::byte> bytes) = 0;
  /// Returns once data and length are on disk (fdatasync). After an error the state of everything appended
  /// since the last success is unknown, and a retry proves nothing: discard the file.
  virtual Status sync() = 0;
  virtual Status close() = 0;
  /// An error if the path that the file was created with no longer refers to it: the file or a parent folder
  /// was removed or moved. Syncing such a file still succeeds, but keeps nothing.
  virtual Status inPlace() const = 0;
};

/// A file opened for reading. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual uint64_t size() const = 0;
  /// Fills `into` from `offset`; reaching the end of the file is an error.
  virtual Status read(uint64_t offset, std::span<std::byte> into) const = 0;
};

/// An exclusive lock, held by this process until destroyed.
class FileLock {
 public:
  virtual ~FileLock() = default;
  /// Whether the path still refers to the locked file; else the lock excludes no other process. True if the
  /// system cannot tell.
  virtual bool inPlace() const = 0;
};

/// All disk access goes through this interface, so that tests can replace it. Errors name the path and the
/// system's reason. Thread-safe.
class Env {
 public:
  virtual ~Env() = default;
  /// Creates a file, or truncates an existing one.
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  /// Creates a file that rename() will move over `replaced`. If `replaced` exists, the new file has its
  /// permissions from the first byte on, and its owner and group as far as this process may set them.
  virtual Result<std::unique_ptr<WritableFile>> createInPlaceOf(const std::string& path,
                                                                const std::string& /*replaced*/) {
    return create(path);
  }
  virtual Result<std::unique_ptr<ReadableFile>> open(const std::string& path) = 0;
  /// Replaces `to` atomically.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status remove(const std::string& path) = 0;
  /// Truncates a file to its first `bytes`; on disk when it returns.
  virtual Status truncate(const std::string& path, uint64_t bytes) = 0;
  /// Creates the folder and missing parents. An existing folder is no error.
  virtual Status createFolder(const std::string& folder) = 0;
  /// Removes an empty folder.
  virtual Status removeFolder(const std::string& folder) = 0;
  /// The names in a folder, sorted.
  virtual Result<std::vector<std::string>> list(const std::string& folder) = 0;
  /// Whether a file or folder exists; an Error if the system cannot tell.
  virtual Result<bool> exists(const std::string& path) = 0;
  /// Makes creations, renames and removals in this folder durable.
  virtual Status syncFolder(const std::string& folder) = 0;
  /// Locks the file at `path`, and its folder if the file system supports that, against other processes;
  /// creates the file if missing. ErrorCode::unavailable if another process holds either lock.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
};

/// The Env of the local file system.
std::unique_ptr<Env> makePosixEnv();

/// The parent folder of a path; "." for a bare name.
std::string folderOf(const std::string& path);

/// Writes a file so that `path` has either its previous content or the complete new one: a temporary name
/// beside it, fsync, rename, fsync of the folder. A replaced file keeps its permissions, see
/// Env::createInPlaceOf(). Errors name `path`.
Status writeFileAtomically(Env& env, const std::string& path,
                           const std::function<Status(WritableFile&)>& write);

/// Whether writeFileAtomically() could start now: the folder exists and accepts a new file. Leaves nothing
/// behind.
Status checkWritable(Env& env, const std::string& path);

}  // namespace psd
