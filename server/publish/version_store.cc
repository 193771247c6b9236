#include "server/publish/version_store.h"

#include <algorithm>
#include <utility>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/os/random_id.h"
#include "server/checkpoint/checkpoint_folder.h"

namespace psd {
namespace {

using Steady = std::chrono::steady_clock;
using System = std::chrono::system_clock;

/// The index rounds the ends of leases up to this, so that readers' renewals rarely write it.
constexpr std::chrono::seconds kLeaseGrain{60};

VersionIndex::Time roundedUp(System::time_point time) {
  const auto grains = std::chrono::ceil<std::chrono::seconds>(time.time_since_epoch()) / kLeaseGrain + 1;
  return VersionIndex::Time(grains * kLeaseGrain);
}

}  // namespace

Result<std::shared_ptr<VersionStore>> VersionStore::open(std::shared_ptr<Env> env, const std::string& folder,
                                                         VersionLedger::Terms terms) {
  std::shared_ptr<VersionStore> store(new VersionStore(std::move(env), folder, terms));
  PSD_RETURN_IF_ERROR(store->load());
  return store;
}

Status VersionStore::load() {
  PSD_RETURN_IF_ERROR(createFolderDurably(*env_, folder_));
  removeUnfinishedVersions(*env_, folder_);
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, listVersions(*env_, folder_));
  auto index = readVersionIndex(*env_, folder_);
  if (!index.ok()) spdlog::warn("{}; the leases of the previous daemon have ended", index.message());
  if (index.ok() && *index) index_ = **std::move(index);
  const auto now = System::now();
  for (const uint64_t number : numbers) {
    auto version = openVersion(*env_, folder_, number);
    ledger_.reserveNumber(number);
    if (!version.ok()) {
      spdlog::warn("skipped: {}", version.message());
      continue;
    }
    const auto leased = index_.leasedUntil.find(number);
    const auto left = leased == index_.leasedUntil.end() ? System::duration::zero() : leased->second - now;
    ledger_.restore(number, version->info.bytes,
                    left > System::duration::zero() ? Steady::now() + left : Steady::time_point::min());
    history_ = version->info.history;
    open_[number] = std::make_shared<const OpenVersion>(*std::move(version));
  }
  if (open_.empty()) history_ = drawId();
  return {};
}

void VersionStore::follow(VersionLedger::Terms terms) {
  const std::lock_guard hold(mutex_);
  ledger_.follow(terms);
}

Result<VersionInfo> VersionStore::publish(VersionInfo info, const VersionContent& content) {
  info.history = history_;
  info.bytes = versionBytes(info, content.model);
  std::vector<std::string> paths;
  {
    const std::lock_guard hold(mutex_);
    const auto now = Steady::now();
    ledger_.expire(now);
    const std::vector<uint64_t> surplus = ledger_.surplus(info.bytes, now);
    PSD_ASSIGN_OR_RETURN(info.number, ledger_.begin(info.bytes, now));
    paths = takeOut(surplus);
  }
  removeFiles(paths);
  PSD_RETURN_IF_ERROR(createFolderDurably(*env_, folder_));  // somebody may have removed it
  PSD_ASSIGN_OR_RETURN(info.bytes, writeVersion(*env_, folder_, info, content));
  PSD_ASSIGN_OR_RETURN(OpenVersion version, openVersion(*env_, folder_, info.number));
  {
    const std::lock_guard hold(mutex_);
    ledger_.commit(info.number, info.bytes);
    open_[info.number] = std::make_shared<const OpenVersion>(std::move(version));
    announce(info);
  }
  prune();
  return info;
}

void VersionStore::prune() {
  std::vector<std::string> paths;
  {
    const std::lock_guard hold(mutex_);
    const auto now = Steady::now();
    ledger_.expire(now);
    paths = takeOut(ledger_.surplus(0, now));
  }
  removeFiles(paths);
  const Status trimmed = keepLeases(true);
  if (!trimmed.ok() && !std::exchange(warned_, true)) {
    spdlog::warn("leases that have ended would hold versions after a restart: {}", trimmed.message());
  }
}

std::vector<std::string> VersionStore::takeOut(const std::vector<uint64_t>& numbers) {
  std::vector<std::string> paths;
  std::swap(paths, unremoved_);
  for (const uint64_t number : numbers) {
    ledger_.removed(number);
    open_.erase(number);
    paths.push_back(versionPath(folder_, number));
  }
  return paths;
}

void VersionStore::removeFiles(const std::vector<std::string>& paths) {
  std::vector<std::string> failed;
  for (const std::string& path : paths) {
    const auto there = env_->exists(path);
    if (there.ok() && !*there) continue;
    if (const Status removed = env_->remove(path); !removed.ok()) failed.push_back(path);
  }
  if (failed.empty()) return;
  const std::lock_guard hold(mutex_);
  if (unremoved_.empty()) spdlog::warn("cannot remove '{}', which is retried", failed.front());
  unremoved_ = std::move(failed);
}

std::vector<VersionInfo> VersionStore::versions() const {
  const std::lock_guard hold(mutex_);
  std::vector<VersionInfo> out;
  for (const auto& [number, version] : open_) out.push_back(version->info);
  return out;
}

kj::Promise<Result<VersionInfo>> VersionStore::whenPublished(uint64_t number) {
  const std::lock_guard hold(mutex_);
  if (ended_) return Result<VersionInfo>(*ended_);
  if (!open_.empty() && open_.rbegin()->first >= number) {
    return Result<VersionInfo>(open_.rbegin()->second->info);
  }
  waiters_.remove_if([](const Waiter& each) { return !each.fulfiller->isWaiting(); });
  auto wait = kj::newPromiseAndCrossThreadFulfiller<Result<VersionInfo>>();
  waiters_.push_back({number, kj::mv(wait.fulfiller)});
  return kj::mv(wait.promise);
}

void VersionStore::announce(const VersionInfo& info) {
  waiters_.remove_if([&info](const Waiter& each) {
    if (each.number > info.number) return !each.fulfiller->isWaiting();
    each.fulfiller->fulfill(Result<VersionInfo>(info));
    return true;
  });
}

void VersionStore::end(const Error& why) {
  const std::lock_guard hold(mutex_);
  ended_ = why;
  for (const Waiter& each : waiters_) each.fulfiller->fulfill(Result<VersionInfo>(why));
  waiters_.clear();
}

Result<std::shared_ptr<const OpenVersion>> VersionStore::find(uint64_t number) const {
  const std::lock_guard hold(mutex_);
  if (open_.empty()) {
    return Error{ErrorCode::notReady,
                 "no version is published yet: see `publish` in the configuration, or "
                 "run psd publish"};
  }
  if (number == 0) return open_.rbegin()->second;
  const auto found = open_.find(number);
  if (found != open_.end()) return found->second;
  return ledger_.missing(number);
}

Result<VersionStore::Lease> VersionStore::lease(uint64_t id, uint64_t number, std::chrono::seconds time,
                                                const std::string& reader) {
  Lease granted;
  {
    const std::lock_guard hold(mutex_);
    if (number == 0) number = ledger_.newest();
    PSD_ASSIGN_OR_RETURN(granted, ledger_.lease(id, number, time, reader, Steady::now()));
  }
  if (const Status kept = keepLeases(); !kept.ok()) {
    release(id);
    return kept.error();
  }
  return granted;
}

void VersionStore::release(uint64_t id) {
  const std::lock_guard hold(mutex_);
  ledger_.release(id);
}

Status VersionStore::keepLeases(bool trim) {
  const std::lock_guard alone(indexMutex_);
  VersionIndex next;
  bool covered = true;
  {
    const std::lock_guard hold(mutex_);
    const auto now = Steady::now();
    for (const auto& [number, until] : ledger_.leasedUntil()) {
      const auto end = System::now() + std::chrono::duration_cast<System::duration>(until - now);
      const auto known = index_.leasedUntil.find(number);
      covered = covered && known != index_.leasedUntil.end() && known->second >= end;
      next.leasedUntil[number] = roundedUp(end);
    }
  }
  const bool excess = trim && index_.leasedUntil.size() > next.leasedUntil.size();
  if (covered && !excess) return {};
  PSD_RETURN_IF_ERROR(writeVersionIndex(*env_, folder_, next));
  index_ = std::move(next);
  return {};
}

size_t VersionStore::entries() const {
  const std::lock_guard hold(mutex_);
  return open_.size() + ledger_.leases().size();
}

void VersionStore::fillStatus(PublishStatus& status) const {
  const std::lock_guard hold(mutex_);
  status.bytes = ledger_.bytes();
  status.newest = ledger_.newest();
  status.history = fmt::format("{:016x}", history_);
  for (const auto& [number, version] : open_) {
    const VersionInfo& info = version->info;
    status.versions.push_back(
        {info.number, info.updates, info.created, std::string(momentName(info.moment)), info.bytes});
  }
  const auto now = Steady::now();
  for (const Lease& lease : ledger_.leases()) {
    const double left = std::chrono::duration<double>(lease.until - now).count();
    if (left <= 0) continue;
    const auto behind = static_cast<uint64_t>(
        std::ranges::count_if(open_, [&](const auto& each) { return each.first > lease.number; }));
    status.leases.push_back({lease.reader, lease.number, behind, left});
  }
}

}  // namespace psd
