#include "server/checkpoint/locked_folder.h"

#include "server/checkpoint/checkpoint_folder.h"

namespace psd {

Result<std::shared_ptr<LockedFolder>> LockedFolder::take(Env& env, const std::string& path,
                                                         const std::string& key) {
  std::shared_ptr<LockedFolder> folder(new LockedFolder(env, path, key));
  PSD_RETURN_IF_ERROR(folder->keep());
  return folder;
}

Status LockedFolder::keep() {
  std::lock_guard hold(mutex_);
  if (lock_ && lock_->inPlace()) return {};
  lock_ = nullptr;
  const auto failed = [this](const Error& why) { return Error{why.code, key_ + ": " + why.message}; };
  if (const Status made = createFolderDurably(env_, path_); !made.ok()) return failed(made.error());
  auto lock = env_.lock(path_ + "/lock");
  if (lock.ok()) {
    lock_ = std::move(*lock);
    return {};
  }
  if (lock.error().code != ErrorCode::unavailable) return failed(lock.error());
  return failed({ErrorCode::unavailable, "'" + path_ + "' is in use by another daemon: " + lock.message()});
}

}  // namespace psd
