#include "server/tools/version_target.h"

#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/text/text.h"
#include "server/publish/shared_version_file.h"
#include "server/publish/version_file.h"

namespace psd {
namespace {

constexpr std::string_view kFileName = "model.safetensors";

class FolderTarget final : public VersionTarget {
 public:
  FolderTarget(Env& env, std::string folder, std::unique_ptr<FileLock> lock)
      : env_(env),
        folder_(std::move(folder)),
        file_(folder_ + "/" + std::string(kFileName)),
        lock_(std::move(lock)) {}

  const std::string& file() const override { return file_; }
  Result<std::optional<VersionHeader>> verified() override {
    PSD_ASSIGN_OR_RETURN(const bool exists, env_.exists(file_));
    if (!exists) return std::optional<VersionHeader>();
    PSD_ASSIGN_OR_RETURN(VersionHeader header, verifyVersionFile(env_, file_));
    return std::optional(std::move(header));
  }
  Status write(const VersionImage& image) override {
    PSD_RETURN_IF_ERROR(env_.createFolder(folder_));  // somebody may have removed it
    return writeFileAtomically(env_, file_, [&](WritableFile& file) {
      return image.passTo([&](std::span<const std::byte> bytes) { return file.append(bytes); });
    });
  }
  std::string awaitReaders(std::chrono::milliseconds) override { return {}; }

 private:
  Env& env_;
  const std::string folder_, file_;
  const std::unique_ptr<FileLock> lock_;
};

class SharedTarget final : public VersionTarget {
 public:
  SharedTarget(std::string path, std::unique_ptr<SharedVersionFile> shared)
      : path_(std::move(path)), shared_(std::move(shared)) {}

  const std::string& file() const override { return path_; }
  Result<std::optional<VersionHeader>> verified() override { return shared_->active(); }
  Status write(const VersionImage& image) override { return shared_->write(image); }
  std::string awaitReaders(std::chrono::milliseconds timeout) override {
    if (shared_->awaitReaders(timeout)) return {};
    return fmt::format("{}: a reader still holds version {}, and the next version needs its place",
                       quotedPath(path_), shared_->idleNumber());
  }

 private:
  const std::string path_;
  const std::unique_ptr<SharedVersionFile> shared_;
};

}  // namespace

Result<std::unique_ptr<VersionTarget>> openFolderTarget(Env& env, const std::string& folder) {
  PSD_RETURN_IF_ERROR(env.createFolder(folder));
  auto lock = env.lock(folder + "/follow.lock");
  if (!lock.ok() && lock.error().code == ErrorCode::unavailable) {
    return Error{ErrorCode::unavailable, "'" + folder + "' is in use by another psd follow"};
  }
  if (!lock.ok()) return lock.error();
  removeUnfinishedVersions(env, folder, kFileName);
  return std::unique_ptr<VersionTarget>(std::make_unique<FolderTarget>(env, folder, *std::move(lock)));
}

Result<std::unique_ptr<VersionTarget>> openSharedTarget(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<SharedVersionFile> shared, SharedVersionFile::open(path));
  removeUnfinishedVersions(env, folderOf(path), std::filesystem::path(path).filename().string());
  return std::unique_ptr<VersionTarget>(std::make_unique<SharedTarget>(path, std::move(shared)));
}

}  // namespace psd
