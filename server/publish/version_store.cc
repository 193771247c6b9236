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

/// A version of another history until the versions before it are removed.
constexpr const char* kArrivingName = "version-arriving.safetensors";

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

Status VersionStore::loadIndex(const std::vector<uint64_t>& numbers) {
  auto index = readVersionIndex(*env_, folder_);
  if (copies_ && !index.ok()) {
    return {ErrorCode::io,
            index.message() + "; the versions can be read from their source again: remove '" + folder_ + "'"};
  }
  const bool isOwn = index.ok() && (*index ? !(*index)->copied : !numbers.empty());
  if (copies_ && isOwn) {
    return {ErrorCode::invalidArgument,
            "'" + folder_ +
                "' has versions that a daemon has published there: a replica needs a folder of its own"};
  }
  if (!index.ok()) spdlog::warn("{}; the leases of the previous daemon have ended", index.message());
  if (index.ok() && *index) index_ = **std::move(index);
  // However the system's clock was set meanwhile, no lease is longer.
  const auto most = System::now() + ledger_.leaseMax() + 2 * kLeaseGrain;
  for (auto& [number, until] : index_.leasedUntil) until = std::min<VersionIndex::Time>(until, most);
  return {};
}

Status VersionStore::load(bool hasAll) {
  PSD_RETURN_IF_ERROR(createFolderDurably(*env_, folder_));
  removeUnfinishedVersions(*env_, folder_);
  if (copies_) static_cast<void>(env_->remove(folder_ + "/" + kArrivingName));
  PSD_ASSIGN_OR_RETURN(std::vector<uint64_t> numbers, listVersions(*env_, folder_));
  PSD_RETURN_IF_ERROR(loadIndex(numbers));
  if (index_.arriving) {
    PSD_RETURN_IF_ERROR(dropArrived(numbers));
    numbers.clear();
  }
  if (!copies_ && std::exchange(index_.copied, false)) hasAll = false;  // of a replica, which may lag behind
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
    if (copies_ && header->info.history != index_.history) {  // of one that has ended, or has just begun
      removeFiles({versionPath(folder_, number)});
      patches_.remove(number);
      continue;
    }
    const auto leased = index_.leasedUntil.find(number);
    const auto left =
        leased == index_.leasedUntil.end() ? System::duration::zero() : leased->second - System::now();
    ledger_.restore(number, header->info.bytes + patches_.bytesOf(number),
                    left > System::duration::zero() ? Steady::now() + left : Steady::time_point::min());
    infos_[number] = std::move(header->info);
    announced_ = infos_[number].history;
  }
  if (copies_) {
    history_ = index_.history;
    index_.copied = true;
    return {};
  }
  // A version that is missing may be known to readers, and its number must not be given again.
  ledger_.reserveNumber(index_.newest);
  const bool hasNewest = !infos_.empty() && infos_.rbegin()->first >= index_.newest;
  const bool continues = hasAll && hasNewest && index_.history != 0;
  history_ = continues ? index_.history : drawId();
  wholeHistory_ = continues ? index_.wholeHistory : 0;
  ahead_ = index_.ahead;
  arrived_ = index_.arrived;
  if (!infos_.empty() && history_ != index_.history) {
    spdlog::warn("'{}' may lack versions that readers have seen: another history of versions begins",
                 folder_);
  }
  if (hasAll) {
    index_.history = history_;  // the file gets these with the next version
    index_.wholeHistory = wholeHistory_;
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
  if (info.parts > 0) {
    if (holds_) PSD_RETURN_IF_ERROR(holds_());
    info.number += ahead_;
    if (info.number > kVersionNumberMax) {
      return Error{ErrorCode::invalidArgument, fmt::format("{} is no number of a version", info.number)};
    }
    if (info.number <= arrived_) {
      return Error{ErrorCode::notReady,
                   fmt::format("its number would be {}, and the versions up to {} were made "
                               "before the model moved here",
                               info.number, arrived_.load())};
    }
    PSD_ASSIGN_OR_RETURN(auto known, takeNumber(info, content));
    if (known) return *std::move(known);
    info.wholeHistory = wholeHistory_;
  }
  info.history = history_;
  const uint64_t bytes = versionBytes(content.tensors, info.shardVersions.size(), info.parts);
  PSD_ASSIGN_OR_RETURN(info.number, begin(bytes));
  PSD_ASSIGN_OR_RETURN(info.bytes, writeVersion(*env_, folder_, info, content));
  if (const Status sent = mirror_ ? mirror_->send(*env_, folder_, nameOf(info.number)) : Status();
      !sent.ok()) {
    removeFiles({versionPath(folder_, info.number)});
    return sent.error();
  }
  PSD_RETURN_IF_ERROR(complete(info, {content.values, {}}));
  return info;
}

Status VersionStore::admitsCopy(const VersionInfo& info) const {
  const std::lock_guard hold(mutex_);
  VersionLedger ledger = ledger_;
  if (info.history != history_) ledger.clear();
  return ledger.admits(info.bytes, Steady::now());
}

Result<VersionInfo> VersionStore::adopt(const VersionInfo& info, std::span<const std::byte> file,
                                        std::span<const std::byte> patch) {
  PSD_ASSIGN_OR_RETURN(const VersionHeader header, verifyVersion(file, info.number, info.history));
  PSD_RETURN_IF_ERROR(admitsCopy(header.info));
  if (info.history != history_) {
    // The versions of the history before stay until this one is on the disk.
    PSD_RETURN_IF_ERROR(writeFileAtomically(*env_, folder_ + "/" + kArrivingName,
                                            [&](WritableFile& out) { return out.append(file); }));
    PSD_RETURN_IF_ERROR(beginHistory(info.history));
    const std::string path = versionPath(folder_, info.number);
    PSD_RETURN_IF_ERROR(env_->rename(folder_ + "/" + kArrivingName, path));
    PSD_RETURN_IF_ERROR(env_->syncFolder(folder_));
  } else {
    if (const auto newest = find(0); newest.ok() && info.number <= newest->number) {
      return Error{ErrorCode::io, fmt::format("version {} is not newer than version {}, which is here",
                                              info.number, newest->number)};
    }
    PSD_RETURN_IF_ERROR(begin(file.size(), info.number).status());
    PSD_RETURN_IF_ERROR(writeVersionFile(*env_, folder_, info.number, file));
  }
  PSD_RETURN_IF_ERROR(complete(header.info, {file.subspan(header.dataBegin), patch}));
  return header.info;
}

Status VersionStore::beginHistory(uint64_t history) {
  if (holds_) PSD_RETURN_IF_ERROR(holds_());
  std::vector<std::string> paths;
  {
    const std::scoped_lock hold(indexMutex_, mutex_);
    std::vector<uint64_t> numbers;
    for (const auto& [number, info] : infos_) numbers.push_back(number);
    paths = takeOut(numbers);
    ledger_.clear();
    history_ = history;
    index_ = {.copied = true};
  }
  removeFiles(paths);
  patches_.clear();
  PSD_RETURN_IF_ERROR(createFolderDurably(*env_, folder_));
  return keepIndex(0).status();  // before the first file of this history
}

Result<uint64_t> VersionStore::begin(uint64_t bytes, uint64_t number) {
  if (holds_) PSD_RETURN_IF_ERROR(holds_());
  std::vector<std::string> paths;
  std::vector<uint64_t> surplus;
  {
    const std::lock_guard hold(mutex_);
    PSD_RETURN_IF_ERROR(mayChange());
    const auto now = Steady::now();
    ledger_.expire(now);
    surplus = ledger_.surplus(bytes, now);
    if (number == 0) {
      PSD_ASSIGN_OR_RETURN(number, ledger_.begin(bytes, now));
    } else {
      PSD_RETURN_IF_ERROR(ledger_.admits(bytes, now));
    }
    paths = takeOut(surplus);
  }
  removeFiles(paths);
  for (const uint64_t each : surplus) patches_.remove(each);
  PSD_RETURN_IF_ERROR(createFolderDurably(*env_, folder_));  // somebody may have removed it
  return number;
}

Status VersionStore::complete(const VersionInfo& info, const Written& written) {
  if (const auto kept = keepIndex(info.number); !kept.ok()) {
    removeFiles({versionPath(folder_, info.number)});
    return kept.error();
  }
  PSD_RETURN_IF_ERROR(mirrored());
  const uint64_t patchBytes = makePatch(info, written);
  {
    const std::lock_guard hold(mutex_);
    ledger_.commit(info.number, info.bytes + patchBytes);
    std::erase(unremoved_, versionPath(folder_, info.number));  // of a version with this number before
    infos_[info.number] = info;
    announce(info);
  }
  prune();
  return {};
}

Result<std::optional<VersionInfo>> VersionStore::takeNumber(const VersionInfo& info,
                                                            const VersionContent& content) {
  std::optional<VersionInfo> known;
  {
    const std::lock_guard hold(mutex_);
    PSD_RETURN_IF_ERROR(mayChange());
    if (info.number > ledger_.highest()) {
      ledger_.continueAt(info.number);
      return std::optional<VersionInfo>();
    }
    if (const auto found = infos_.find(info.number); found != infos_.end()) known = found->second;
  }
  if (known && isSame(*known, info, content)) return known;
  spdlog::warn("round {} was made again, with other values: another history of versions begins",
               info.number - ahead_);
  std::vector<std::string> paths;
  std::vector<uint64_t> numbers;
  {
    const std::lock_guard alone(indexMutex_);
    const std::lock_guard hold(mutex_);
    for (auto each = infos_.lower_bound(info.number); each != infos_.end(); ++each) {
      numbers.push_back(each->first);
    }
    paths = takeOut(numbers);
    ledger_.continueAt(info.number);
    history_ = drawId();
    wholeHistory_ = 0;
    index_.newest = 0;  // the file follows with the version; until then a start begins another history too
  }
  removeFiles(paths);
  for (const uint64_t number : numbers) patches_.remove(number);
  return std::optional<VersionInfo>();
}

bool VersionStore::isSame(const VersionInfo& known, const VersionInfo& info,
                          const VersionContent& content) const {
  if (known.momentId != info.momentId || known.part != info.part || known.parts != info.parts) return false;
  const auto header = readVersionHeader(*env_, versionPath(folder_, known.number));
  return header.ok() && header->tensors.size() == content.tensors.size() &&
         header->checksums == checksumsOf(content);
}

uint64_t VersionStore::makePatch(const VersionInfo& info, const Written& written) {
  if (info.parts > 0 || arriving_) return 0;  // readers of parts read them whole
  uint64_t from = 0, room = 0;
  {
    const std::lock_guard hold(mutex_);
    from = ledger_.newest();
    room = ledger_.room();
  }
  if (from == 0 || room < info.bytes) return 0;
  const uint64_t most = std::min(room - info.bytes, info.bytes / 2);
  const auto made = [&]() -> Result<uint64_t> {
    PSD_ASSIGN_OR_RETURN(const uint64_t kept, patches_.keep(from, info.number, written.patch, most));
    return kept > 0 ? kept : patches_.make(from, info.number, written.values, most);
  }();
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
  return checkPublishedWeights(header, layout, weights);
}

void VersionStore::prune() {
  std::vector<std::string> paths;
  std::vector<uint64_t> surplus;
  {
    const std::lock_guard hold(mutex_);
    if (!mayChange().ok()) return;
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
    unreadable_.erase(number);
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
  if (!hidden_ && !infos_.empty() && infos_.rbegin()->first >= number) {
    return Result<VersionInfo>(infos_.rbegin()->second);
  }
  waiters_.remove_if([](const Waiter& each) { return !each.fulfiller->isWaiting(); });
  auto wait = kj::newPromiseAndCrossThreadFulfiller<Result<VersionInfo>>();
  waiters_.push_back({number, announced_, kj::mv(wait.fulfiller)});
  return kj::mv(wait.promise);
}

void VersionStore::announce(const VersionInfo& info) {
  if (hidden_) return;
  announced_ = info.history;
  waiters_.remove_if([&info](const Waiter& each) {
    const bool isOfAnother = each.history != 0 && each.history != info.history;
    if (each.number > info.number && !isOfAnother) return !each.fulfiller->isWaiting();
    each.fulfiller->fulfill(Result<VersionInfo>(info));
    return true;
  });
}

void VersionStore::end(const Error& why) {
  const std::lock_guard hold(mutex_);
  ended_ = why;
  for (const Waiter& each : waiters_) each.fulfiller->fulfill(Result<VersionInfo>(why));
  waiters_.clear();
  endThawWaits();
}

Result<VersionInfo> VersionStore::find(uint64_t number) const {
  const std::lock_guard hold(mutex_);
  const auto found = number == 0 && !infos_.empty() ? std::prev(infos_.end()) : infos_.find(number);
  if (found == infos_.end()) return ledger_.missing(number);
  return found->second;
}

Result<std::vector<std::byte>> VersionStore::read(uint64_t number, uint64_t offset, uint64_t count) {
  std::shared_ptr<ReadableFile> file;
  uint64_t history = 0;
  {
    const std::lock_guard hold(mutex_);
    const auto found = infos_.find(number);
    if (found == infos_.end()) return ledger_.missing(number);
    history = found->second.history;
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
    const auto found = infos_.find(number);
    if (found != infos_.end() && found->second.history == history) lastRead_ = {number, file};
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
    PSD_RETURN_IF_ERROR(mayChange());
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
  VersionIndex next{.newest = std::max(newest, index_.newest),
                    .history = history_,
                    .wholeHistory = wholeHistory_,
                    .ahead = ahead_,
                    .arrived = arrived_,
                    .copied = index_.copied,
                    .arriving = arriving_};
  bool covered = next.newest == index_.newest && next.history == index_.history &&
                 next.wholeHistory == index_.wholeHistory && next.ahead == index_.ahead &&
                 next.arrived == index_.arrived && next.arriving == index_.arriving;
  {
    const std::lock_guard hold(mutex_);
    next.uncommitted = hidden_ && !infos_.empty();
    covered = covered && next.uncommitted == index_.uncommitted;
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
  for (const auto& [each, file] : files) PSD_RETURN_IF_ERROR(copyVersionFile(*file, to, name + "/" + each));
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
  if (history_ != 0) status.history = fmt::format("{:016x}", history_.load());
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
    if (left > 0) status.leases.push_back({"an earlier reader", number, newer[number], left});
  }
  std::ranges::sort(status.leases, {},
                    [](const VersionLeaseStatus& lease) { return std::tie(lease.reader, lease.version); });
}

}  // namespace psd
