#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// A file being written in order. Owned by one thread. What was appended and not synced may be lost, in
/// whole or in part, when the machine fails.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  /// Writes the bytes at the end. On an error some of them may be there.
  virtual Status append(std::span<const std::byte> bytes) = 0;
  /// Returns once bytes and length are on the disk (fdatasync). After an error nothing is known about what
  /// was appended since the last success, and trying again proves nothing: give the file up.
  virtual Status sync() = 0;
  virtual Status close() = 0;
  /// An error where the path that the file was made with does not stand for it any more: somebody removed or
  /// moved the file, or a folder above it. Syncing such a file succeeds all the same, and keeps nothing.
  virtual Status inPlace() const = 0;
};

/// A file mapped or read for reading. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual uint64_t size() const = 0;
  /// Fills `into` from `offset`; a short file is an error.
  virtual Status read(uint64_t offset, std::span<std::byte> into) const = 0;
};

/// Held by this process alone until destroyed.
class FileLock {
 public:
  virtual ~FileLock() = default;
  /// Whether the path still stands for what is locked; else it keeps nobody out. True where the system does
  /// not tell.
  virtual bool inPlace() const = 0;
};

/// Every access to the disk goes through here, so that tests can stand in for it. Errors name the path
/// and the system's reason. Thread-safe.
class Env {
 public:
  virtual ~Env() = default;
  /// A new file, or an old one emptied.
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  /// A new file that rename() puts in the place of `replaced`. Where that is there, the new file has its
  /// permissions from the first byte on, and its owner and group as far as this process may set them.
  virtual Result<std::unique_ptr<WritableFile>> createInPlaceOf(const std::string& path,
                                                                const std::string& /*replaced*/) {
    return create(path);
  }
  virtual Result<std::unique_ptr<ReadableFile>> open(const std::string& path) = 0;
  /// Replaces `to`, at once for everyone who looks.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status remove(const std::string& path) = 0;
  /// Cuts a file off after its first `bytes`; on the disk when it returns.
  virtual Status truncate(const std::string& path, uint64_t bytes) = 0;
  /// Makes the folder and missing folders above it. No error where it is there.
  virtual Status createFolder(const std::string& folder) = 0;
  /// An empty folder.
  virtual Status removeFolder(const std::string& folder) = 0;
  /// The names in a folder, sorted.
  virtual Result<std::vector<std::string>> list(const std::string& folder) = 0;
  /// Whether there is a file or folder; an Error where the system does not tell.
  virtual Result<bool> exists(const std::string& path) = 0;
  /// Makes what was created, renamed and removed in this folder survive a crash.
  virtual Status syncFolder(const std::string& folder) = 0;
  /// Keeps other processes out of what `path` stands for, and of the folder that it lies in where the file
  /// system can do that; made when it is missing. ErrorCode::unavailable when another one has either.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
};

/// The system's files.
std::unique_ptr<Env> makePosixEnv();

/// The folder that a path lies in; "." for a bare name.
std::string folderOf(const std::string& path);

/// Writes a file so that `path` holds either what it held before or the whole new content: a
/// temporary name beside it, fsync, rename, fsync of the folder. A file that is replaced keeps its
/// permissions, see Env::createInPlaceOf(). Errors name `path`.
Status writeFileAtomically(Env& env, const std::string& path,
                           const std::function<Status(WritableFile&)>& write);

/// Whether writeFileAtomically() could begin now: the folder is there and takes a new file. Leaves nothing
/// behind.
Status checkWritable(Env& env, const std::string& path);

}  // namespace psd
