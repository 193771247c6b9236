#include "server/publish/version_store.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/os/random_id.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/publish/weights_copy.h"

namespace psd {
namespace {

using Steady = std::chrono::steady_clock;
using System = std::chrono::system_clock;

/// The index rounds the ends of leases up to this, so that readers' renewals rarely write it.
constexpr std::chrono::seconds kLeaseGrain{60};
constexpr std::chrono::seconds kTolerance{1};  // of the two clocks
constexpr uint64_t kCopyBytes = 1u << 20;

std::string nameOf(uint64_t number) { return versionPath("", number).substr(1); }

VersionIndex::Time roundedUp(System::time_point time) {
  const auto grains = std::chrono::ceil<std::chrono::seconds>(time.time_since_epoch()) / kLeaseGrain + 1;
  return VersionIndex::Time(grains * kLeaseGrain);
}

}  // namespace

Result<std::shared_ptr<VersionStore>> VersionStore::open(Place place, VersionLedger::Terms terms) {
  const bool hasAll = place.hasAll;
  std::shared_ptr<VersionStore> store(new VersionStore(std::move(place), terms));
  PSD_RETURN_IF_ERROR(store->load(hasAll));
  return store;
}

Status VersionStore::load(bool hasAll) {
  PSD_RETURN_IF_ERROR(createFolderDurably(*env_, folder_));
  removeUnfinishedVersions(*env_, folder_);
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, listVersions(*env_, folder_));
  auto index = readVersionIndex(*env_, folder_);
  if (!index.ok()) spdlog::warn("{}; the leases of the previous daemon have ended", index.message());
  if (index.ok() && *index) index_ = **std::move(index);
  // However the system's clock was set meanwhile, no lease is longer.
  const auto most = System::now() + ledger_.leaseMax() + 2 * kLeaseGrain;
  for (auto& [number, until] : index_.leasedUntil) until = std::min<VersionIndex::Time>(until, most);
  patches_.load(numbers);
  for (const uint64_t number : numbers) {
    ledger_.reserveNumber(number);
    auto header = readVersionHeader(*env_, versionPath(folder_, number));
    if (header.ok() && header->info.number != number) {
      header = Error{ErrorCode::io, fmt::format("'{}' says that it is version {}",
                                                versionPath(folder_, number), header->info.number)};
    }
    if (!header.ok()) {
      spdlog::warn("skipped: {}", header.message());
      continue;
    }
    const auto leased = index_.leasedUntil.find(number);
    const auto left =
        leased == index_.leasedUntil.end() ? System::duration::zero() : leased->second - System::now();
    ledger_.restore(number, header->info.bytes + patches_.bytesOf(number),
                    left > System::duration::zero() ? Steady::now() + left : Steady::time_point::min());
    infos_[number] = std::move(header->info);
  }
  // A version that is missing may be known to readers, and its number must not be given again.
  ledger_.reserveNumber(index_.newest);
  const bool hasNewest = !infos_.empty() && infos_.rbegin()->first >= index_.newest;
  history_ = hasAll && hasNewest && index_.history != 0 ? index_.history : drawId();
  if (!infos_.empty() && history_ != index_.history) {
    spdlog::warn("'{}' may lack versions that readers have seen: another history of versions begins",
                 folder_);
  }
  if (hasAll) {
    index_.history = history_;  // the file gets it with the next version
  } else {
    static_cast<void>(keepIndex(0));  // logs its error
  }
  return {};
}

void VersionStore::follow(VersionLedger::Terms terms) {
  const std::lock_guard hold(mutex_);
  ledger_.follow(terms);
}

Status VersionStore::admits(std::span<const SafetensorsEntry> tensors, size_t shards) const {
  const uint64_t bytes = versionBytes(tensors, shards);
  const std::lock_guard hold(mutex_);
  return ledger_.admits(bytes, Steady::now());
}

Result<VersionInfo> VersionStore::publish(VersionInfo info, const VersionContent& content) {
  info.history = history_;
  const uint64_t bytes = versionBytes(content.tensors, info.shardVersions.size());
  if (holds_) PSD_RETURN_IF_ERROR(holds_());
  std::vector<std::string> paths;
  std::vector<uint64_t> surplus;
  {
    const std::lock_guard hold(mutex_);
    const auto now = Steady::now();
    ledger_.expire(now);
    surplus = ledger_.surplus(bytes, now);
    PSD_ASSIGN_OR_RETURN(info.number, ledger_.begin(bytes, now));
    paths = takeOut(surplus);
  }
  removeFiles(paths);
  for (const uint64_t number : surplus) patches_.remove(number);
  PSD_RETURN_IF_ERROR(createFolderDurably(*env_, folder_));  // somebody may have removed it
  PSD_ASSIGN_OR_RETURN(info.bytes, writeVersion(*env_, folder_, info, content));
  if (const Status sent = mirror_ ? mirror_->send(*env_, folder_, nameOf(info.number)) : Status();
      !sent.ok()) {
    removeFiles({versionPath(folder_, info.number)});
    return sent.error();
  }
  if (const auto kept = keepIndex(info.number); !kept.ok()) {
    removeFiles({versionPath(folder_, info.number)});
    return kept.error();
  }
  PSD_RETURN_IF_ERROR(mirrored());
  const uint64_t patchBytes = makePatch(info);
  {
    const std::lock_guard hold(mutex_);
    ledger_.commit(info.number, info.bytes + patchBytes);
    infos_[info.number] = info;
    announce(info);
  }
  prune();
  return info;
}

uint64_t VersionStore::makePatch(const VersionInfo& info) {
  uint64_t from = 0, room = 0;
  {
    const std::lock_guard hold(mutex_);
    from = ledger_.newest();
    room = ledger_.room();
  }
  if (from == 0 || room < info.bytes) return 0;
  const auto made = patches_.make(from, info.number, room - info.bytes);
  if (made.ok()) return *made;
  spdlog::warn("version {} has no patch, and is read whole: {}", info.number, made.message());
  return 0;
}

Result<uint64_t> VersionStore::patchBytes(uint64_t history, uint64_t from, uint64_t to) {
  {
    const std::lock_guard hold(mutex_);
    const auto found = infos_.find(to);
    if (found == infos_.end()) return ledger_.missing(to);
    if (found->second.history != history || from >= to) return uint64_t{0};
  }
  return patches_.size(from, to);
}

Result<std::vector<std::byte>> VersionStore::readPatch(uint64_t history, uint64_t from, uint64_t to,
                                                       uint64_t offset, uint64_t count) {
  PSD_ASSIGN_OR_RETURN(const uint64_t size, patchBytes(history, from, to));
  if (size == 0) return Error{ErrorCode::notReady, "there is no such patch any more"};
  if (count > size) return Error{ErrorCode::badSlice, "the bytes are not in the patch"};
  std::vector<std::byte> bytes(count + 7);  // which wire::referenceBytes() may read
  PSD_RETURN_IF_ERROR(patches_.read(from, to, offset, std::span(bytes).first(count)));
  return bytes;
}

Status VersionStore::checkWeights(uint64_t number, const ModelLayout& layout,
                                  std::span<const float> weights) const {
  PSD_ASSIGN_OR_RETURN(const VersionHeader header, readVersionHeader(*env_, versionPath(folder_, number)));
  const std::vector<TensorPlace>& places = layout.places();
  for (size_t i = 0; i < header.tensors.size(); i++) {
    const SafetensorsEntry& tensor = header.tensors[i];
    uint32_t checksum = 0;
    bool fits = i < places.size();
    if (fits) {
      PSD_ASSIGN_OR_RETURN(checksum,
                           roundedChecksum(weights.subspan(places[i].begin, places[i].count), tensor.dtype));
      fits = checksum == header.checksums[i];
    }
    if (fits) continue;
    return {ErrorCode::modelMismatch,
            fmt::format("tensor '{}' is not that of version {}", tensor.name, number)};
  }
  return {};
}

void VersionStore::prune() {
  std::vector<std::string> paths;
  std::vector<uint64_t> surplus;
  {
    const std::lock_guard hold(mutex_);
    const auto now = Steady::now();
    ledger_.expire(now);
    surplus = ledger_.surplus(0, now);
    paths = takeOut(surplus);
  }
  removeFiles(paths);
  for (const uint64_t number : surplus) patches_.remove(number);
  static_cast<void>(keepIndex(0, /*trim=*/true));  // logs its error
}

std::vector<std::string> VersionStore::takeOut(const std::vector<uint64_t>& numbers) {
  std::vector<std::string> paths;
  std::swap(paths, unremoved_);
  for (const uint64_t number : numbers) {
    ledger_.removed(number);
    infos_.erase(number);
    if (lastRead_.first == number) lastRead_ = {};
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
    if (mirror_) mirror_->remove(path.substr(folder_.size() + 1));
  }
  if (failed.empty()) return;
  const std::lock_guard hold(mutex_);
  if (unremoved_.empty()) spdlog::warn("cannot remove '{}', which is retried", failed.front());
  unremoved_ = std::move(failed);
}

std::vector<VersionInfo> VersionStore::versions() const {
  const std::lock_guard hold(mutex_);
  std::vector<VersionInfo> out;
  for (const auto& [number, info] : infos_) out.push_back(info);
  return out;
}

kj::Promise<Result<VersionInfo>> VersionStore::whenPublished(uint64_t number) {
  const std::lock_guard hold(mutex_);
  if (ended_) return Result<VersionInfo>(*ended_);
  if (!infos_.empty() && infos_.rbegin()->first >= number) {
    return Result<VersionInfo>(infos_.rbegin()->second);
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

Result<VersionInfo> VersionStore::find(uint64_t number) const {
  const std::lock_guard hold(mutex_);
  const auto found = number == 0 && !infos_.empty() ? std::prev(infos_.end()) : infos_.find(number);
  if (found == infos_.end()) return ledger_.missing(number);
  return found->second;
}

Result<std::vector<std::byte>> VersionStore::read(uint64_t number, uint64_t offset, uint64_t count) {
  std::shared_ptr<ReadableFile> file;
  {
    const std::lock_guard hold(mutex_);
    const auto found = infos_.find(number);
    if (found == infos_.end()) return ledger_.missing(number);
    const uint64_t size = found->second.bytes;
    if (count == 0 || offset > size || count > size - offset) {
      return Error{ErrorCode::badSlice,
                   fmt::format("{} bytes from {} on are not in the {} bytes of version {}", count, offset,
                               size, number)};
    }
    if (lastRead_.first == number) file = lastRead_.second;
  }
  if (!file) {
    PSD_ASSIGN_OR_RETURN(file, env_->open(versionPath(folder_, number)));
    const std::lock_guard hold(mutex_);
    if (infos_.contains(number)) lastRead_ = {number, file};
  }
  std::vector<std::byte> bytes(count + 7);  // which wire::referenceBytes() may read
  PSD_RETURN_IF_ERROR(file->read(offset, std::span(bytes).first(count)));
  return bytes;
}

Result<VersionStore::Lease> VersionStore::lease(uint64_t id, uint64_t number, std::chrono::seconds time,
                                                const std::string& reader) {
  Lease granted;
  {
    const std::lock_guard hold(mutex_);
    if (number == 0) number = ledger_.newest();
    PSD_ASSIGN_OR_RETURN(granted, ledger_.lease(id, number, time, reader, Steady::now()));
  }
  const auto kept = keepIndex(0);  // logs its error: a full disk must not keep readers from versions
  if (mirror_ && kept.ok() && *kept > 0) PSD_RETURN_IF_ERROR(mirror_->wait(*kept));
  return granted;
}

void VersionStore::release(uint64_t id) {
  const std::lock_guard hold(mutex_);
  ledger_.release(id);
}

Result<uint64_t> VersionStore::keepIndex(uint64_t newest, bool trim) {
  const std::lock_guard alone(indexMutex_);
  VersionIndex next{.newest = std::max(newest, index_.newest), .history = history_};
  bool covered = next.newest == index_.newest && next.history == index_.history;
  {
    const std::lock_guard hold(mutex_);
    const auto now = Steady::now();
    for (const auto& [number, until] : ledger_.leasedUntil()) {
      const auto end = System::now() + std::chrono::duration_cast<System::duration>(until - now);
      const auto known = index_.leasedUntil.find(number);
      const bool isCovered = known != index_.leasedUntil.end() && known->second + kTolerance >= end;
      covered = covered && isCovered;
      next.leasedUntil[number] = isCovered ? known->second : roundedUp(end);
    }
  }
  const bool excess = index_.leasedUntil.size() > next.leasedUntil.size();
  if (covered && !(trim && excess)) return uint64_t{0};
  // A reader that alternates between versions must not write the index each time.
  if (!trim) next.leasedUntil.insert(index_.leasedUntil.begin(), index_.leasedUntil.end());
  Status written = holds_ ? holds_() : Status();
  const std::string text = versionIndexText(next);
  uint64_t sent = 0;
  if (written.ok()) written = writeVersionIndex(*env_, folder_, text);
  if (written.ok()) {
    if (mirror_) sent = mirror_->sendText(kVersionIndexName, text);
    index_ = std::move(next);
    warned_ = false;
  } else if (!std::exchange(warned_, true)) {
    spdlog::warn("leases of versions would not survive a restart as they are: {}", written.message());
  }
  if (!written.ok()) return written.error();
  return sent;
}

Status VersionStore::copyTo(Env& to, const std::string& name) const {
  // Versions that are not announced yet are copied as well: the standby may have missed the beginning of
  // their files.
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, listVersions(*env_, folder_));
  std::vector<std::pair<std::string, std::unique_ptr<ReadableFile>>> files;
  for (const uint64_t number : numbers) {
    auto file = env_->open(versionPath(folder_, number));
    if (file.ok()) files.emplace_back(nameOf(number), *std::move(file));  // else it has just been removed
  }
  if (auto index = env_->open(folder_ + "/" + kVersionIndexName); index.ok()) {
    files.emplace_back(kVersionIndexName, *std::move(index));
  }
  std::vector<std::byte> piece;
  for (const auto& [each, file] : files) {
    PSD_ASSIGN_OR_RETURN(const auto out, to.create(name + "/" + each));
    for (uint64_t at = 0; at < file->size(); at += piece.size()) {
      piece.resize(std::min<uint64_t>(kCopyBytes, file->size() - at));
      PSD_RETURN_IF_ERROR(file->read(at, piece));
      PSD_RETURN_IF_ERROR(out->append(piece));
    }
    PSD_RETURN_IF_ERROR(out->close());
  }
  return {};
}

std::chrono::milliseconds VersionStore::waitedForStandby() const {
  return mirror_ ? mirror_->waited() : std::chrono::milliseconds(0);
}

void VersionStore::endMirror() {
  if (mirror_) mirror_->end();
}

size_t VersionStore::entries() const {
  const std::lock_guard hold(mutex_);
  return infos_.size() + ledger_.leases().size();
}

void VersionStore::fillStatus(PublishStatus& status) const {
  const std::lock_guard hold(mutex_);
  status.bytes = ledger_.bytes();
  status.newest = ledger_.newest();
  status.history = fmt::format("{:016x}", history_);
  std::map<uint64_t, uint64_t> newer;  // by version, how many are
  for (const auto& [number, info] : infos_) {
    status.versions.push_back(
        {info.number, info.step, info.created, std::string(momentName(info.moment)), info.bytes});
    newer[number] = infos_.size() - status.versions.size();
  }
  const auto now = Steady::now();
  for (const Lease& lease : ledger_.leases()) {
    const double left = std::chrono::duration<double>(lease.until - now).count();
    if (left > 0) status.leases.push_back({lease.reader, lease.number, newer[lease.number], left});
  }
  for (const auto& [number, until] : ledger_.heldUntil()) {
    const double left = std::chrono::duration<double>(until - now).count();
    if (left > 0) status.leases.push_back({"readers before the restart", number, newer[number], left});
  }
  std::ranges::sort(status.leases, {},
                    [](const VersionLeaseStatus& lease) { return std::tie(lease.reader, lease.version); });
}

}  // namespace psd
