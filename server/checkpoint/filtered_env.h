#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/os/env.h"

namespace psd {

/// An Env that discards writes to unwanted files. As thread-safe as the underlying Env, which outlives it.
class FilteredEnv final : public Env {
 public:
  /// `wanted`: whether to write the file with a given path.
  FilteredEnv(Env& env, std::function<bool(const std::string&)> wanted)
      : env_(env), wanted_(std::move(wanted)) {}

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    if (wanted_(path)) return env_.create(path);
    return std::unique_ptr<WritableFile>(std::make_unique<NullFile>());
  }
  Result<std::unique_ptr<WritableFile>> createInPlaceOf(const std::string& path,
                                                        const std::string& replaced) override {
    return wanted_(path) ? env_.createInPlaceOf(path, replaced) : create(path);
  }
  Result<std::unique_ptr<ReadableFile>> open(const std::string& path) override { return env_.open(path); }
  Status rename(const std::string& from, const std::string& to) override { return env_.rename(from, to); }
  Status remove(const std::string& path) override { return env_.remove(path); }
  Status truncate(const std::string& path, uint64_t bytes) override { return env_.truncate(path, bytes); }
  Status createFolder(const std::string& folder) override { return env_.createFolder(folder); }
  Status removeFolder(const std::string& folder) override { return env_.removeFolder(folder); }
  Result<std::vector<std::string>> list(const std::string& folder) override { return env_.list(folder); }
  Result<bool> exists(const std::string& path) override { return env_.exists(path); }
  Status syncFolder(const std::string& folder) override { return env_.syncFolder(folder); }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override { return env_.lock(path); }

 private:
  class NullFile final : public WritableFile {
   public:
    Status append(std::span<const std::byte>) override { return {}; }
    Status sync() override { return {}; }
    Status close() override { return {}; }
    Status inPlace() const override { return {}; }
  };

  Env& env_;
  const std::function<bool(const std::string&)> wanted_;
};

}  // namespace psd
