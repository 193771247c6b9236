#include "server/replica/standby_files.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

constexpr uint64_t kPieceBytes = 1u << 20;
constexpr size_t kNameBytesMax = 200, kUnfinishedMax = 16;

/// Whether a primary's name for a file stays within its folder.
bool isPlainName(const std::string& name) {
  return !name.empty() && name.size() <= kNameBytesMax && name.front() != '.' &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

}  // namespace

Result<std::unique_ptr<StandbyFiles>> StandbyFiles::make(std::shared_ptr<Env> env, std::string folder,
                                                         Env& image, const std::string& name) {
  std::unique_ptr<StandbyFiles> files(new StandbyFiles(std::move(env), std::move(folder)));
  PSD_RETURN_IF_ERROR(files->copyFrom(image, name));
  return files;
}

StandbyFiles::~StandbyFiles() {
  while (!unfinished_.empty()) discard(std::string(unfinished_.begin()->first));
}

Status StandbyFiles::copyFrom(Env& image, const std::string& name) {
  PSD_RETURN_IF_ERROR(env_->createFolder(folder_));
  PSD_ASSIGN_OR_RETURN(const std::vector<std::string> previous, env_->list(folder_));
  for (const std::string& each : previous) PSD_RETURN_IF_ERROR(env_->remove(path(each)));
  PSD_ASSIGN_OR_RETURN(const std::vector<std::string> names, image.list(name));
  std::vector<std::byte> piece;
  for (const std::string& each : names) {
    if (!isPlainName(each)) return {ErrorCode::invalidArgument, "the image has a file with a wrong name"};
    PSD_ASSIGN_OR_RETURN(const auto from, image.open(name + "/" + each));
    PSD_RETURN_IF_ERROR(writeFileAtomically(*env_, path(each), [&](WritableFile& to) -> Status {
      for (uint64_t at = 0; at < from->size(); at += piece.size()) {
        piece.resize(std::min(kPieceBytes, from->size() - at));
        PSD_RETURN_IF_ERROR(from->read(at, piece));
        PSD_RETURN_IF_ERROR(to.append(piece));
      }
      return {};
    }));
    static_cast<void>(image.remove(name + "/" + each));  // frees its memory
  }
  return env_->syncFolder(folder_);
}

Status StandbyFiles::apply(const FileChange& change) {
  if (!isPlainName(change.name)) {
    return {ErrorCode::invalidArgument,
            "the primary changes a file with a wrong name: '" + printable(change.name) + "'"};
  }
  switch (change.kind) {
    case FileChange::Kind::append: return append(change);
    case FileChange::Kind::commit: return commit(change);
    case FileChange::Kind::remove: return remove(change.name);
  }
  return {};
}

Status StandbyFiles::append(const FileChange& change) {
  if (change.offset == 0) {
    discard(change.name);
    if (unfinished_.size() == kUnfinishedMax) {
      return {ErrorCode::invalidArgument, "the primary writes too many files at once"};
    }
    PSD_ASSIGN_OR_RETURN(unfinished_[change.name].file, env_->create(temporary(change.name)));
  }
  const auto found = unfinished_.find(change.name);
  if (found == unfinished_.end()) return {};
  Unfinished& unfinished = found->second;
  if (unfinished.bytes != change.offset) {
    discard(change.name);
    return {};
  }
  const Status appended = unfinished.file->append(change.bytes);
  unfinished.bytes += change.bytes.size();
  if (!appended.ok()) discard(change.name);  // so that its commit fails, too
  return appended;
}

Status StandbyFiles::commit(const FileChange& change) {
  const auto found = unfinished_.find(change.name);
  if (found == unfinished_.end()) {
    PSD_ASSIGN_OR_RETURN(const bool exists, env_->exists(path(change.name)));
    if (exists) return {};  // the image had it
    return {ErrorCode::invalidArgument,
            "the primary's file '" + printable(change.name) + "' has arrived without its beginning"};
  }
  Unfinished& unfinished = found->second;
  if (unfinished.bytes != change.offset) {
    return {ErrorCode::invalidArgument,
            fmt::format("the primary's file '{}' has {} bytes, of which {} have arrived",
                        printable(change.name), change.offset, unfinished.bytes)};
  }
  PSD_RETURN_IF_ERROR(unfinished.file->sync());
  PSD_RETURN_IF_ERROR(unfinished.file->close());
  unfinished_.erase(found);
  PSD_RETURN_IF_ERROR(env_->rename(temporary(change.name), path(change.name)));
  return env_->syncFolder(folder_);
}

Status StandbyFiles::remove(const std::string& name) {
  discard(name);
  PSD_ASSIGN_OR_RETURN(const bool exists, env_->exists(path(name)));
  return exists ? env_->remove(path(name)) : Status();
}

void StandbyFiles::discard(const std::string& name) {
  const auto found = unfinished_.find(name);
  if (found == unfinished_.end()) return;
  if (found->second.file) static_cast<void>(found->second.file->close());
  static_cast<void>(env_->remove(temporary(name)));
  unfinished_.erase(found);
}

}  // namespace psd
