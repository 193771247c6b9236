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

/// Files in this process's memory: hold a checkpoint received from another daemon until it is in a store.
/// Thread-safe.
class MemoryFiles final : public Env {
 public:
  /// `most`: limit in bytes for all files, names included. Beyond it writes fail with ErrorCode::overloaded.
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

  /// Appends to a file; creates it if it does not exist.
  Status append(const std::string& path, std::span<const std::byte> bytes);

  /// Bytes used so far, including those of removed files.
  uint64_t held() const { return held_; }
  /// Whether a write was refused because of the limit.
  bool full() const { return full_; }

 private:
  using Content = std::shared_ptr<std::vector<std::byte>>;
  Content find(const std::string& path) const;
  /// Reserves bytes of the limit.
  Status take(uint64_t bytes);
  /// Grows the content's capacity by at least `more` bytes.
  Status grow(std::vector<std::byte>& content, uint64_t more);

  const uint64_t most_;
  std::atomic<uint64_t> held_{0};
  std::atomic<bool> full_{false};
  mutable std::mutex mutex_;  // guards what follows; a file's content is written before it is read
  std::map<std::string, Content> files_;
};

}  // namespace psd
