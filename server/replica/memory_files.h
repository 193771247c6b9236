#pragma once

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

 private:
  using Content = std::shared_ptr<std::vector<std::byte>>;
  Content find(const std::string& path) const;

  mutable std::mutex mutex_;  // guards what follows; a file's content is written before it is read
  std::map<std::string, Content> files_;
};

}  // namespace psd
