#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "common/status/status.h"

namespace psd {

/// A file of text, plain or, if its name ends with .gz, compressed by gzip, with one or several members.
/// Offsets are those of the text. Read once from start to end, then at any offset. Owned by one thread until
/// the end has been read; readAt() is then thread-safe. The file is open only while it is read. All errors
/// name it.
class TextFile {
 public:
  /// Distance between cuts. In a compressed file decompression can begin at each, which takes 32 KiB of
  /// memory; they are further apart where the blocks of the compressed data are longer.
  static constexpr uint64_t kCutBytes = 4u << 20;

  static Result<std::unique_ptr<TextFile>> open(const std::string& path);
  virtual ~TextFile() = default;
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  const std::string& path() const { return path_; }
  /// Size on the disk.
  uint64_t storedBytes() const { return storedBytes_; }
  /// Of these, the bytes that read() has passed.
  virtual uint64_t storedBytesRead() const = 0;

  /// Reads the next bytes of the text, and fewer than `into` has only before the end; 0: the end. A
  /// compressed file that ends too early or is damaged is an error.
  virtual Result<size_t> read(std::span<char> into) = 0;
  /// An offset, at least about kCutBytes after `begin`, from which readAt() is cheap, as far as the text has
  /// been read.
  virtual uint64_t cutAfter(uint64_t begin) const = 0;
  /// Reads these bytes of the text. An error if the file has changed and has no such bytes.
  virtual Status readAt(uint64_t offset, std::span<char> into) const = 0;

 protected:
  /// The file, opened. Owned by one thread.
  class Stored {
   public:
    explicit Stored(int fd) : fd_(fd) {}
    ~Stored();
    Stored(const Stored&) = delete;
    Stored& operator=(const Stored&) = delete;
    int fd() const { return fd_; }

   private:
    const int fd_;
  };

  TextFile(std::string path, uint64_t storedBytes, int64_t changedAt)
      : path_(std::move(path)), storedBytes_(storedBytes), changedAt_(changedAt) {}
  /// An error if the file is not that of open() any more.
  Result<std::unique_ptr<Stored>> openStored() const;
  /// Reads stored bytes; fewer only at the end of the file.
  Result<size_t> readStored(const Stored& stored, uint64_t offset, std::span<char> into) const;
  Error problem(const std::string& what) const;

 private:
  const std::string path_;
  const uint64_t storedBytes_;
  const int64_t changedAt_;  ///< time of the last change, in nanoseconds
};

}  // namespace psd
