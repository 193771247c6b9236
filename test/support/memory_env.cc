#include "test/support/memory_env.h"

#include <algorithm>
#include <cstring>

namespace psd::testing {
namespace {

constexpr const char* kPowerFailed = "the power has failed";
constexpr const char* kMissing = "No such file or directory";

bool liesIn(const std::string& path, const std::string& folder) {
  return folderOf(path) == folder && path != folder;
}

/// Renames the files and folders of a folder that was renamed.
template <class Names>
void moveContent(Names& names, const std::string& from, const std::string& to) {
  for (auto& [path, inode] : Names(names)) {
    if (!path.starts_with(from + "/")) continue;
    names[to + path.substr(from.size())] = inode;
    names.erase(path);
  }
}

class MemoryFileLock final : public FileLock {
 public:
  MemoryFileLock(MemoryEnv& env, std::shared_ptr<std::set<std::string>> locks, std::string path)
      : env_(env), locks_(std::move(locks)), path_(std::move(path)) {}
  ~MemoryFileLock() override { locks_->erase(path_); }
  bool inPlace() const override {
    const auto there = env_.exists(path_);
    return !there.ok() || *there;
  }

 private:
  MemoryEnv& env_;
  std::shared_ptr<std::set<std::string>> locks_;
  std::string path_;
};

}  // namespace

class MemoryReadableFile final : public ReadableFile {
 public:
  MemoryReadableFile(MemoryEnv& env, std::string path, std::string bytes)
      : env_(env), path_(std::move(path)), bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  Status read(uint64_t offset, std::span<std::byte> into) const override {
    const std::lock_guard hold(env_.mutex_);
    if (auto failed = env_.enterRead("read", path_)) return *failed;
    if (offset > bytes_.size() || into.size() > bytes_.size() - offset) {
      return {ErrorCode::io, "'" + path_ + "': ends before byte " + std::to_string(offset + into.size())};
    }
    if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
    return {};
  }

 private:
  MemoryEnv& env_;
  const std::string path_, bytes_;
};

class MemoryWritableFile final : public WritableFile {
 public:
  MemoryWritableFile(MemoryEnv& env, std::string path, std::shared_ptr<MemoryEnv::Inode> inode, uint64_t life)
      : env_(env), path_(std::move(path)), inode_(std::move(inode)), life_(life) {}
  Status append(std::span<const std::byte> bytes) override {
    return env_.append(life_, path_, *inode_, bytes);
  }
  Status sync() override { return env_.sync(life_, path_, *inode_); }
  Status close() override { return {}; }
  Status inPlace() const override { return env_.inPlace(path_, inode_.get()); }

 private:
  MemoryEnv& env_;
  const std::string path_;
  const std::shared_ptr<MemoryEnv::Inode> inode_;
  const uint64_t life_;
};

MemoryEnv::MemoryEnv() : live_{{"/", nullptr}, {".", nullptr}}, durable_(live_) {}

Error MemoryEnv::error(const std::string& path, const std::string& what, const std::string& reason) {
  return {ErrorCode::io, "'" + path + "': " + what + ": " + reason};
}

bool MemoryEnv::hasFolder(const std::string& folder) const {
  auto entry = live_.find(folder);
  return entry != live_.end() && entry->second == nullptr;
}

std::optional<Error> MemoryEnv::enter(const std::string& name, const std::string& path,
                                      const std::string& detail) {
  if (crashed_) return error(path, "cannot " + name, kPowerFailed);
  crashed_ = crashAt_ == operations_.size();
  operations_.push_back(name + " " + path + (detail.empty() ? "" : " " + detail));
  if (crashed_) return error(path, "cannot " + name, kPowerFailed);
  if (failure_ && (failing_.empty() || failing_.count(name) != 0) && skipped_++ >= skip_) {
    return error(path, "cannot " + name, *failure_);
  }
  return {};
}

std::optional<Error> MemoryEnv::enterRead(const std::string& name, const std::string& path) {
  if (crashed_) return error(path, "cannot " + name, kPowerFailed);
  if (failure_ && failing_.count(name) != 0) return error(path, "cannot " + name, *failure_);
  const uint64_t number = reads_.next++;
  if (number < reads_.first || number >= reads_.last) return {};
  reads_.failed++;
  return error(path, "cannot " + name, reads_.reason);
}

std::string MemoryEnv::Inode::reachable() const {
  std::string out = bytes;
  for (const auto& [from, to] : forgotten) {
    if (from < out.size()) std::fill(out.begin() + from, out.begin() + std::min(to, out.size()), '\0');
  }
  return out;
}

Status MemoryEnv::append(uint64_t life, const std::string& path, Inode& inode,
                         std::span<const std::byte> bytes) {
  std::lock_guard hold(mutex_);
  if (life != life_) return error(path, "cannot append", kPowerFailed);
  const bool dead = crashed_;
  const auto failed = enter("append", path, std::to_string(bytes.size()));
  size_t written = bytes.size();
  if (failed) written = dead ? 0 : crashed_ ? bytes.size() * crashAppended_ / 16 : bytes.size() / 2;
  inode.bytes.append(reinterpret_cast<const char*>(bytes.data()), written);
  return failed ? Status(*failed) : Status();
}

Status MemoryEnv::inPlace(const std::string& path, const Inode* inode) const {
  std::lock_guard hold(mutex_);
  const auto entry = live_.find(path);
  if (entry != live_.end() && entry->second.get() == inode) return {};
  return {ErrorCode::io, "'" + path + "': no longer exists"};
}

Status MemoryEnv::sync(uint64_t life, const std::string& path, Inode& inode) {
  std::lock_guard hold(mutex_);
  if (life != life_) return error(path, "cannot sync", kPowerFailed);
  const bool dead = crashed_;
  if (auto failed = enter("sync", path)) {
    if (!dead && !crashed_) inode.forgotten.emplace_back(inode.synced.size(), inode.bytes.size());
    return *failed;
  }
  inode.synced = inode.reachable();
  return {};
}

Result<std::unique_ptr<WritableFile>> MemoryEnv::create(const std::string& path) {
  std::lock_guard hold(mutex_);
  if (auto failed = enter("create", path)) return *failed;
  if (!hasFolder(folderOf(path))) return error(path, "cannot create", kMissing);
  auto& inode = live_[path];
  if (inode) {
    inode->bytes.clear();
  } else {
    inode = std::make_shared<Inode>();
  }
  return std::unique_ptr<WritableFile>(new MemoryWritableFile(*this, path, inode, life_));
}

Result<std::unique_ptr<ReadableFile>> MemoryEnv::open(const std::string& path) {
  std::lock_guard hold(mutex_);
  if (auto failed = enterRead("open", path)) return *failed;
  auto entry = live_.find(path);
  if (entry == live_.end()) return error(path, "cannot open", kMissing);
  if (!entry->second) return error(path, "cannot open", "Is a directory");
  return std::unique_ptr<ReadableFile>(new MemoryReadableFile(*this, path, entry->second->bytes));
}

Status MemoryEnv::rename(const std::string& from, const std::string& to) {
  std::lock_guard hold(mutex_);
  if (auto failed = enter("rename", to)) return *failed;
  auto entry = live_.find(from);
  if (entry == live_.end() || !hasFolder(folderOf(to))) return error(to, "cannot rename to", kMissing);
  for (const auto& [path, inode] : live_) {
    if (liesIn(path, to)) return error(to, "cannot rename to", "Directory not empty");
  }
  live_[to] = entry->second;
  live_.erase(from);
  moveContent(live_, from, to);
  // Durable entries of a folder are reachable under any name that the folder durably has.
  for (auto& [path, inode] : std::map(durable_)) {
    if (path.starts_with(from + "/")) durable_[to + path.substr(from.size())] = inode;
  }
  return {};
}

Status MemoryEnv::remove(const std::string& path) {
  std::lock_guard hold(mutex_);
  if (auto failed = enter("remove", path)) return *failed;
  auto entry = live_.find(path);
  if (entry == live_.end() || !entry->second) return error(path, "cannot remove", kMissing);
  live_.erase(entry);
  return {};
}

Status MemoryEnv::truncate(const std::string& path, uint64_t bytes) {
  std::lock_guard hold(mutex_);
  if (auto failed = enter("truncate", path)) return *failed;
  auto entry = live_.find(path);
  if (entry == live_.end() || !entry->second) return error(path, "cannot truncate", kMissing);
  entry->second->bytes.resize(bytes);
  entry->second->synced = entry->second->reachable();
  return {};
}

Status MemoryEnv::createFolder(const std::string& folder) {
  std::lock_guard hold(mutex_);
  if (auto failed = enter("createFolder", folder)) return *failed;
  for (std::string path = folder; !hasFolder(path); path = folderOf(path)) {
    if (live_.count(path) != 0) return error(path, "cannot create the folder", "Not a directory");
    live_[path] = nullptr;
  }
  return {};
}

Status MemoryEnv::removeFolder(const std::string& folder) {
  std::lock_guard hold(mutex_);
  if (auto failed = enter("removeFolder", folder)) return *failed;
  if (!hasFolder(folder)) return error(folder, "cannot remove", kMissing);
  for (const auto& [path, inode] : live_) {
    if (liesIn(path, folder)) return error(folder, "cannot remove", "Directory not empty");
  }
  live_.erase(folder);
  return {};
}

Result<std::vector<std::string>> MemoryEnv::list(const std::string& folder) {
  std::lock_guard hold(mutex_);
  if (auto failed = enterRead("list", folder)) return *failed;
  if (!hasFolder(folder)) return error(folder, "cannot list", kMissing);
  std::vector<std::string> names;
  for (const auto& [path, inode] : live_) {
    if (liesIn(path, folder)) names.push_back(path.substr(path.rfind('/') + 1));
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<bool> MemoryEnv::exists(const std::string& path) {
  std::lock_guard hold(mutex_);
  if (auto failed = enterRead("exists", path)) return *failed;
  return live_.count(path) != 0;
}

Status MemoryEnv::syncFolder(const std::string& folder) {
  std::lock_guard hold(mutex_);
  if (auto failed = enter("syncFolder", folder)) return *failed;
  if (!hasFolder(folder)) return error(folder, "cannot open", kMissing);
  std::erase_if(durable_, [&](const auto& entry) { return liesIn(entry.first, folder); });
  for (const auto& [path, inode] : live_) {
    if (liesIn(path, folder)) durable_[path] = inode;
  }
  return {};
}

Result<std::unique_ptr<FileLock>> MemoryEnv::lock(const std::string& path) {
  std::lock_guard hold(mutex_);
  if (auto failed = enter("lock", path)) return *failed;
  if (!hasFolder(folderOf(path))) return error(path, "cannot open", kMissing);
  if (!locks_->insert(path).second) {
    return Error{ErrorCode::unavailable, "'" + path + "': another process has locked it"};
  }
  if (live_.count(path) == 0) live_[path] = std::make_shared<Inode>();
  return std::unique_ptr<FileLock>(new MemoryFileLock(*this, locks_, path));
}

std::vector<std::string> MemoryEnv::operations() const {
  std::lock_guard hold(mutex_);
  return operations_;
}

void MemoryEnv::crashAt(uint64_t number, unsigned appended) {
  std::lock_guard hold(mutex_);
  crashAt_ = number;
  crashAppended_ = appended;
}

bool MemoryEnv::crashed() const {
  std::lock_guard hold(mutex_);
  return crashed_;
}

void MemoryEnv::restart(Survival survival) {
  std::lock_guard hold(mutex_);
  const bool names = survival != Survival::syncedOnly && survival != Survival::dataWithoutNames;
  Names found;
  for (const auto& [path, inode] : names ? live_ : durable_) {
    // A file or folder whose parent folder is gone is gone with it.
    const std::string folder = folderOf(path);
    if (folder != path && path != "." && path != "/" && found.count(folder) == 0) continue;
    if (!inode) {
      found[path] = nullptr;
      continue;
    }
    auto after = std::make_shared<Inode>();
    const std::string all = inode->reachable();
    const size_t kept = std::min(inode->synced.size(), all.size());
    after->bytes = inode->synced;
    if (all.size() > kept) {
      switch (survival) {
        case Survival::everything:
        case Survival::dataWithoutNames: after->bytes = all; break;
        case Survival::namesWithZeros: after->bytes.resize(all.size(), '\0'); break;
        case Survival::namesWithHalfData: after->bytes = all.substr(0, kept + (all.size() - kept) / 2); break;
        case Survival::namesWithLateData:
          after->bytes = all;
          std::fill_n(after->bytes.begin() + static_cast<ptrdiff_t>(kept), (all.size() - kept) / 2, '\0');
          break;
        case Survival::syncedOnly:
        case Survival::namesWithoutData: break;
      }
    }
    after->synced = after->bytes;
    found[path] = after;
  }
  live_ = durable_ = std::move(found);
  beginLife();
}

void MemoryEnv::restartProcess() {
  std::lock_guard hold(mutex_);
  beginLife();
}

void MemoryEnv::beginLife() {
  operations_.clear();
  crashAt_.reset();
  crashed_ = false;
  life_++;
  locks_ = std::make_shared<std::set<std::string>>();
}

void MemoryEnv::fail(std::set<std::string> which, std::string reason, uint64_t skip) {
  std::lock_guard hold(mutex_);
  skip_ = skip;
  skipped_ = 0;
  failing_ = std::move(which);
  failure_ = std::move(reason);
}

void MemoryEnv::failReads(uint64_t first, uint64_t count, std::string reason) {
  std::lock_guard hold(mutex_);
  reads_ = {0, first, first + count, 0, std::move(reason)};
}

void MemoryEnv::heal() {
  std::lock_guard hold(mutex_);
  failure_.reset();
  reads_ = {};
}

uint64_t MemoryEnv::failedReads() const {
  std::lock_guard hold(mutex_);
  return reads_.failed;
}

void MemoryEnv::vanish(const std::string& folder) {
  std::lock_guard hold(mutex_);
  for (Names* names : {&live_, &durable_}) {
    std::erase_if(*names, [&](const auto& entry) {
      return entry.first == folder || entry.first.starts_with(folder + "/");
    });
  }
}

std::string MemoryEnv::bytes(const std::string& path) const {
  std::lock_guard hold(mutex_);
  auto entry = live_.find(path);
  return entry == live_.end() || !entry->second ? "" : entry->second->bytes;
}

std::map<std::string, std::string> MemoryEnv::files() const {
  std::lock_guard hold(mutex_);
  std::map<std::string, std::string> out;
  for (const auto& [path, inode] : live_) {
    if (inode) out[path] = inode->bytes;
  }
  return out;
}

void MemoryEnv::put(const std::string& path, const std::string& bytes) {
  std::lock_guard hold(mutex_);
  auto inode = std::make_shared<Inode>();
  inode->bytes = inode->synced = bytes;
  live_[path] = durable_[path] = inode;
}

}  // namespace psd::testing
