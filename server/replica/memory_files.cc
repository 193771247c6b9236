#include "server/replica/memory_files.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace psd {
namespace {

constexpr uint64_t kFileBytes = 512;  // overhead per file, besides name and content

Error missing(const std::string& path) { return {ErrorCode::io, "'" + path + "': no such file"}; }

class Writer final : public WritableFile {
 public:
  Writer(MemoryFiles& files, std::string path) : files_(files), path_(std::move(path)) {}
  Status append(std::span<const std::byte> bytes) override { return files_.append(path_, bytes); }
  Status sync() override { return {}; }
  Status close() override { return {}; }
  Status inPlace() const override { return {}; }

 private:
  MemoryFiles& files_;
  const std::string path_;
};

class Reader final : public ReadableFile {
 public:
  Reader(std::shared_ptr<const std::vector<std::byte>> content, std::string path)
      : content_(std::move(content)), path_(std::move(path)) {}
  uint64_t size() const override { return content_->size(); }
  Status read(uint64_t offset, std::span<std::byte> into) const override {
    if (offset > content_->size() || into.size() > content_->size() - offset) {
      return {ErrorCode::io, "'" + path_ + "' is shorter than it should be"};
    }
    if (!into.empty()) std::memcpy(into.data(), content_->data() + offset, into.size());
    return {};
  }

 private:
  const std::shared_ptr<const std::vector<std::byte>> content_;
  const std::string path_;
};

}  // namespace

MemoryFiles::Content MemoryFiles::find(const std::string& path) const {
  const std::lock_guard hold(mutex_);
  const auto file = files_.find(path);
  return file == files_.end() ? nullptr : file->second;
}

Status MemoryFiles::take(uint64_t bytes) {
  uint64_t held = held_;
  do {
    if (bytes > most_ - std::min(held, most_)) {
      full_ = true;
      return {ErrorCode::overloaded, "the limit is " + std::to_string(most_) + " bytes, of which " +
                                         std::to_string(held) + " are used; cannot add " +
                                         std::to_string(bytes)};
    }
  } while (!held_.compare_exchange_weak(held, held + bytes));
  return {};
}

Status MemoryFiles::grow(std::vector<std::byte>& content, uint64_t more) {
  const uint64_t has = content.capacity(), needed = content.size() + more;
  if (needed <= has) return {};
  const uint64_t free = most_ - std::min<uint64_t>(held_, most_);
  const uint64_t ahead = std::min(has / 2, free > needed - has ? free - (needed - has) : 0);
  PSD_RETURN_IF_ERROR(take(needed + ahead - has));
  content.reserve(needed + ahead);
  return {};
}

Status MemoryFiles::append(const std::string& path, std::span<const std::byte> bytes) {
  Content content = find(path);
  try {
    if (!content) {
      PSD_RETURN_IF_ERROR(take(path.size() + kFileBytes));
      content = std::make_shared<std::vector<std::byte>>();
      const std::lock_guard hold(mutex_);
      files_[path] = content;
    }
    PSD_RETURN_IF_ERROR(grow(*content, bytes.size()));
    content->insert(content->end(), bytes.begin(), bytes.end());
  } catch (const std::bad_alloc&) {
    return {ErrorCode::overloaded, "out of memory for '" + path + "'"};
  }
  return {};
}

Result<std::unique_ptr<WritableFile>> MemoryFiles::create(const std::string& path) {
  const std::lock_guard hold(mutex_);
  files_[path] = std::make_shared<std::vector<std::byte>>();
  return std::unique_ptr<WritableFile>(std::make_unique<Writer>(*this, path));
}

Result<std::unique_ptr<ReadableFile>> MemoryFiles::open(const std::string& path) {
  Content content = find(path);
  if (!content) return missing(path);
  return std::unique_ptr<ReadableFile>(std::make_unique<Reader>(std::move(content), path));
}

Status MemoryFiles::rename(const std::string& from, const std::string& to) {
  PSD_RETURN_IF_ERROR(take(to.size()));
  const std::lock_guard hold(mutex_);
  const auto file = files_.find(from);
  if (file == files_.end()) return missing(from);
  Content content = std::move(file->second);
  files_.erase(file);
  files_[to] = std::move(content);
  return {};
}

Status MemoryFiles::remove(const std::string& path) {
  const std::lock_guard hold(mutex_);
  return files_.erase(path) > 0 ? Status() : missing(path);
}

Status MemoryFiles::truncate(const std::string& path, uint64_t bytes) {
  const Content content = find(path);
  if (!content) return missing(path);
  if (bytes < content->size()) content->resize(bytes);
  return {};
}

Result<std::vector<std::string>> MemoryFiles::list(const std::string& folder) {
  const std::lock_guard hold(mutex_);
  std::vector<std::string> names;
  const std::string prefix = folder + "/";
  for (const auto& [path, content] : files_) {
    if (!path.starts_with(prefix)) continue;
    std::string name = path.substr(prefix.size());
    name.resize(std::min(name.find('/'), name.size()));
    if (names.empty() || names.back() != name) names.push_back(std::move(name));
  }
  return names;
}

Result<bool> MemoryFiles::exists(const std::string& path) {
  if (find(path)) return true;
  PSD_ASSIGN_OR_RETURN(const auto names, list(path));
  return !names.empty();
}

Result<std::unique_ptr<FileLock>> MemoryFiles::lock(const std::string& path) {
  return Error{ErrorCode::internal, "'" + path + "': files in memory have no locks"};
}

}  // namespace psd
