#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <kj/async.h>

#include "common/os/env.h"

namespace psd {

/// A chunk of a checkpoint that is sent to a follower. A value type.
struct ImagePart {
  std::string path;              ///< relative to the parent of the checkpoint's folder
  std::string renamedTo;         ///< not empty: a rename of the file to this path, without bytes
  std::vector<std::byte> bytes;  ///< to append to the file
};

/// Files that are sent instead of written: the writer blocks while too much is in flight. After end(), writes
/// fail with an Error. One thread writes, one event loop reads. Thread-safe.
class ImageStream final : public Env {
 public:
  /// Each part has at most `partBytes` bytes.
  explicit ImageStream(uint64_t partBytes) : partBytes_(partBytes) {}
  ~ImageStream() noexcept override {}

  /// Resolves, on the calling loop, once there is a part or the stream has ended. One caller at a time.
  kj::Promise<void> whenFilled();
  /// The next part; nothing once the stream has ended.
  std::optional<ImagePart> take();
  /// The writer is done: take() returns what is left, then nothing.
  void finish();
  /// The reader is done: later writes fail.
  void end();

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  // A stream cannot be read and keeps nothing.
  Result<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  Status remove(const std::string&) override { return {}; }
  Status truncate(const std::string& path, uint64_t bytes) override;
  Status createFolder(const std::string&) override { return {}; }
  Status removeFolder(const std::string&) override { return {}; }
  Result<std::vector<std::string>> list(const std::string&) override { return std::vector<std::string>(); }
  Result<bool> exists(const std::string&) override { return false; }
  Status syncFolder(const std::string&) override { return {}; }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;

  /// Adds a part; blocks while too much is in flight.
  Status put(ImagePart part);
  uint64_t partBytes() const { return partBytes_; }

 private:
  static constexpr size_t kPartsMax = 16;
  using Reader = kj::Maybe<kj::Own<kj::CrossThreadPromiseFulfiller<void>>>;
  static void wake(Reader reader) {
    KJ_IF_MAYBE (waits, reader) (*waits)->fulfill();
  }
  /// Requires the mutex.
  Reader takeReader() {
    Reader reader = kj::mv(reader_);
    reader_ = nullptr;
    return reader;
  }

  const uint64_t partBytes_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable taken_;
  std::deque<ImagePart> parts_;
  bool ended_ = false, finished_ = false;
  Reader reader_;
};

}  // namespace psd
