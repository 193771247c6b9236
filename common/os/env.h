#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// A file being written in order. Owned by one thread. Destroying it without close() drops what the
/// system has not written yet.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Status append(std::span<const std::byte> bytes) = 0;
  /// Returns once the bytes are on the disk (fsync).
  virtual Status sync() = 0;
  virtual Status close() = 0;
};

/// A file mapped or read for reading. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual uint64_t size() const = 0;
  /// Fills `into` from `offset`; a short file is an error.
  virtual Status read(uint64_t offset, std::span<std::byte> into) const = 0;
};

/// Every access to the disk goes through here, so that tests can stand in for it. Errors name the path
/// and the system's reason. Thread-safe.
class Env {
 public:
  virtual ~Env() = default;
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;
  virtual Result<std::unique_ptr<ReadableFile>> open(const std::string& path) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status remove(const std::string& path) = 0;
  /// Makes a rename or creation in this folder survive a crash.
  virtual Status syncFolder(const std::string& folder) = 0;
};

/// The system's files.
std::unique_ptr<Env> makePosixEnv();

/// Writes a file so that `path` holds either what it held before or the whole new content: a
/// temporary name beside it, fsync, rename, fsync of the folder.
Status writeFileAtomically(Env& env, const std::string& path,
                           const std::function<Status(WritableFile&)>& write);

}  // namespace psd
