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

/// A piece of a checkpoint on its way to a follower. A value type.
struct ImagePart {
  std::string path;              ///< in the checkpoint's folder's folder
  std::string renamedTo;         ///< where not empty: the file has this path from now on; no bytes
  std::vector<std::byte> bytes;  ///< to be added at the end of the file
};

/// Files that are not written but sent: who writes waits while too much is under way. Where it ends early,
/// what is written from then on is an Error. One thread writes, an event loop takes. Thread-safe.
class ImageStream final : public Env {
 public:
  /// Parts have at most `partBytes`.
  explicit ImageStream(uint64_t partBytes) : partBytes_(partBytes) {}
  ~ImageStream() noexcept override {}

  /// Resolves, on the calling loop, once there is a part or there will be none. One caller at a time.
  kj::Promise<void> whenFilled();
  /// The next part; nothing once there will be none.
  std::optional<ImagePart> take();
  /// Nothing more is put: take() gives what is left, and then nothing.
  void finish();
  /// Nothing more is taken.
  void end();

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  // A stream has nothing to be read, and keeps nothing.
  Result<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  Status remove(const std::string&) override { return {}; }
  Status truncate(const std::string& path, uint64_t bytes) override;
  Status createFolder(const std::string&) override { return {}; }
  Status removeFolder(const std::string&) override { return {}; }
  Result<std::vector<std::string>> list(const std::string&) override { return std::vector<std::string>(); }
  Result<bool> exists(const std::string&) override { return false; }
  Status syncFolder(const std::string&) override { return {}; }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;

  /// Adds a part; waits while too much is under way.
  Status put(ImagePart part);
  uint64_t partBytes() const { return partBytes_; }

 private:
  static constexpr size_t kPartsMax = 16;
  using Reader = kj::Maybe<kj::Own<kj::CrossThreadPromiseFulfiller<void>>>;
  static void wake(Reader reader) {
    KJ_IF_MAYBE (waits, reader) (*waits)->fulfill();
  }
  /// With the mutex held.
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
