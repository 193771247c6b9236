#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/os/env.h"

namespace psd {

/// Files in this process' memory: a checkpoint that comes from another daemon, until it is in a store.
/// Thread-safe.
class MemoryFiles final : public Env {
 public:
  /// `most`: bytes that they may take together, names included. What goes beyond is ErrorCode::overloaded.
  explicit MemoryFiles(uint64_t most = UINT64_MAX) : most_(most) {}

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  Result<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status truncate(const std::string& path, uint64_t bytes) override;
  Status createFolder(const std::string&) override { return {}; }
  Status removeFolder(const std::string&) override { return {}; }
  Result<std::vector<std::string>> list(const std::string& folder) override;
  Result<bool> exists(const std::string& path) override;
  Status syncFolder(const std::string&) override { return {}; }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;

  /// Adds bytes at the end of a file, which is made where it is not there.
  Status append(const std::string& path, std::span<const std::byte> bytes);

  /// Bytes that they have taken; those of files that were removed too.
  uint64_t held() const { return held_; }
  /// Something went beyond what they may take.
  bool full() const { return full_; }

 private:
  using Content = std::shared_ptr<std::vector<std::byte>>;
  Content find(const std::string& path) const;
  /// Takes so many bytes of what there may be.
  Status take(uint64_t bytes);
  /// Makes room for so many more bytes behind the content.
  Status grow(std::vector<std::byte>& content, uint64_t more);

  const uint64_t most_;
  std::atomic<uint64_t> held_{0};
  std::atomic<bool> full_{false};
  mutable std::mutex mutex_;  // guards what follows; a file's content is written before it is read
  std::map<std::string, Content> files_;
};

}  // namespace psd
