// The part of VersionStore for moves of the model to another daemon.

#include <algorithm>
#include <utility>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/os/random_id.h"
#include "common/text/quantity.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/publish/version_store.h"

namespace psd {
namespace {

using Steady = std::chrono::steady_clock;

}  // namespace

Status VersionStore::mayChange() const {
  if (frozen_) return *frozen_;
  if (!hidden_) return {};
  return {ErrorCode::standby, "a model is being moved here, and the move is not committed yet"};
}

// --- Source ----------------------------------------------------------------------------------------------

void VersionStore::freeze(Error why) {
  const std::lock_guard hold(mutex_);
  if (!left_) frozen_ = std::move(why);
}

void VersionStore::thaw() {
  const std::lock_guard hold(mutex_);
  if (left_) return;
  frozen_.reset();
  endThawWaits();
}

void VersionStore::leave(Error why) {
  uint64_t next = 0;
  {
    const std::lock_guard hold(mutex_);
    frozen_ = std::move(why);
    left_ = true;
    if (infos_.empty()) return;
    next = infos_.rbegin()->first + 1;
  }
  // The next number is given elsewhere. A start that serves the old model again lacks it, so it begins
  // another history.
  static_cast<void>(keepIndex(next));  // logs its error
}

kj::Promise<void> VersionStore::whenThawed() {
  const std::lock_guard hold(mutex_);
  if (!frozen_ || ended_) return kj::READY_NOW;
  std::erase_if(thawWaits_, [](const auto& each) { return !each->isWaiting(); });
  auto wait = kj::newPromiseAndCrossThreadFulfiller<void>();
  thawWaits_.push_back(kj::mv(wait.fulfiller));
  return kj::mv(wait.promise);
}

bool VersionStore::frozen() const {
  const std::lock_guard hold(mutex_);
  return frozen_ && !ended_;
}

void VersionStore::endThawWaits() {
  for (auto& each : thawWaits_) each->fulfill();
  thawWaits_.clear();
}

Result<VersionStore::Given> VersionStore::giveTo(Env& to, uint64_t after) {
  for (;;) {
    Given given;
    const auto file = [&]() -> Result<std::unique_ptr<ReadableFile>> {
      const std::lock_guard hold(mutex_);  // the version is not removed before its file is open
      const auto next = infos_.upper_bound(after);
      if (next == infos_.end()) return std::unique_ptr<ReadableFile>();
      given = {next->first, static_cast<uint64_t>(std::distance(next, infos_.end()) - 1), "version",
               infos_.begin()->first};
      return env_->open(versionPath(folder_, given.number));
    }();
    if (given.number == 0) return given;
    const std::string path = versionPath(folder_, given.number);
    const Status whole = file.ok() ? verifyVersionFile(**file, path).status() : file.status();
    if (whole.ok()) {
      PSD_RETURN_IF_ERROR(copyVersionFile(**file, to, given.path));
      const std::lock_guard hold(mutex_);
      unreadable_.erase(given.number);  // an earlier move may have been short of descriptors
      return given;
    }
    spdlog::warn("version {} does not move with the model: {}", given.number, whole.message());
    const std::lock_guard hold(mutex_);
    unreadable_.insert(given.number);
    after = given.number;
  }
}

VersionsContinuation VersionStore::continuation() const {
  const std::lock_guard hold(mutex_);
  VersionsContinuation out{.history = history_,
                           .wholeHistory = wholeHistory_,
                           .highest = ledger_.highest(),
                           .ahead = ahead_,
                           .numbers = ledger_.numbers()};
  std::erase_if(out.numbers, [this](uint64_t number) { return unreadable_.contains(number); });
  const auto now = Steady::now();
  for (const auto& [number, until] : ledger_.leasedUntil()) {
    if (until <= now || unreadable_.contains(number)) continue;
    out.leases[number] = std::chrono::ceil<std::chrono::seconds>(until - now);
  }
  return out;
}

// --- Target ----------------------------------------------------------------------------------------------

Status VersionStore::mayArrive() const {
  const std::lock_guard hold(mutex_);
  if (hidden_ || infos_.empty()) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("'{}' has published versions already: versions move to an empty folder", folder_)};
}

bool VersionStore::hideUncommitted() {
  const std::scoped_lock hold(indexMutex_, mutex_);
  if (!index_.uncommitted) return false;
  hidden_ = true;
  return true;
}

void VersionStore::show() {
  const std::lock_guard hold(mutex_);
  if (!hidden_.exchange(false) || infos_.empty()) return;
  announce(infos_.rbegin()->second);
}

Status VersionStore::beginArrival(Partition own) {
  PSD_RETURN_IF_ERROR(mayArrive());
  if (holds_) PSD_RETURN_IF_ERROR(holds_());
  PSD_RETURN_IF_ERROR(createFolderDurably(*env_, folder_));
  {
    const std::lock_guard hold(mutex_);
    hidden_ = true;
    arriving_ = true;
    arrivesAs_ = own;
  }
  {
    const std::lock_guard alone(indexMutex_);
    index_ = {};  // whatever was published here before does not count for those that arrive
    wholeHistory_ = 0;
    ahead_ = 0;
    arrived_ = 0;
  }
  // First the file says that the versions do not count.
  if (const Status kept = keepIndex(0).status(); !kept.ok()) {
    arriving_ = false;
    return {kept.error().code, "cannot receive published versions: " + kept.message()};
  }
  dropHidden(ledgerNumbers());
  return {};
}

Status VersionStore::arrive(std::span<const std::byte> file, uint64_t oldest) {
  const auto header = verifyVersion(file);
  if (!header.ok()) return {header.error().code, "a version arrived damaged: " + header.message()};
  const VersionInfo& info = header->info;
  std::vector<uint64_t> removed;
  {
    const std::lock_guard hold(mutex_);
    if (!arriving_) return {ErrorCode::notReady, "no versions arrive here"};
    const Partition is{info.part, std::max(info.parts, 1U)};
    if (is != arrivesAs_) {
      return {
          ErrorCode::invalidArgument,
          fmt::format("version {} is of {}, and this daemon has {}: use the psd move of this daemon's psd",
                      info.number, is.toString(), arrivesAs_.toString())};
    }
    if (info.number <= ledger_.newest()) {
      return {ErrorCode::invalidArgument,
              fmt::format("version {} does not follow version {} here", info.number, ledger_.newest())};
    }
    for (const uint64_t number : ledger_.numbers()) {
      if (number < oldest) removed.push_back(number);
    }
  }
  dropHidden(removed);
  // The source may have removed more meanwhile; endArrival() finds out.
  while (room() < file.size()) {
    const std::vector<uint64_t> numbers = ledgerNumbers();
    if (numbers.empty()) {
      return {ErrorCode::overloaded,
              fmt::format("version {} takes {}, more than limits.version_bytes here: raise it", info.number,
                          bytesText(file.size()))};
    }
    dropHidden({numbers.front()});
  }
  if (holds_) PSD_RETURN_IF_ERROR(holds_());
  PSD_RETURN_IF_ERROR(writeVersionFile(*env_, folder_, info.number, file));
  return complete(info, {});  // versions that arrive have no patches
}

Status VersionStore::endArrival(const VersionsContinuation& continuation) {
  std::vector<uint64_t> removed;
  {
    const std::scoped_lock hold(indexMutex_, mutex_);
    if (!arriving_) return {ErrorCode::notReady, "no versions arrive here"};
    for (const uint64_t number : ledger_.numbers()) {
      if (!std::ranges::binary_search(continuation.numbers, number)) removed.push_back(number);
    }
    for (const uint64_t number : continuation.numbers) {
      if (infos_.contains(number)) continue;
      return {ErrorCode::overloaded,
              fmt::format(
                  "version {} of the previous daemon is not here; limits.version_bytes must have room for "
                  "all of its versions: raise it",
                  number)};
    }
    const bool isPart = !arrivesAs_.isWhole();
    const bool valid = continuation.history != 0 && isPart == (continuation.wholeHistory != 0) &&
                       continuation.highest >= ledger_.newest() && continuation.highest < kVersionNumberMax &&
                       continuation.ahead <= continuation.highest;
    if (!valid) return {ErrorCode::invalidArgument, "the versions cannot continue with such numbers"};
    history_ = continuation.history;
    wholeHistory_ = continuation.wholeHistory;
    ahead_ = continuation.ahead;
    arrived_ = isPart ? continuation.highest : 0;
    ledger_.reserveNumber(continuation.highest);
    const auto now = Steady::now();
    for (const auto& [number, time] : continuation.leases) {
      ledger_.holdUntil(number, now + std::min(time, ledger_.leaseMax()));
    }
  }
  dropHidden(removed);
  arriving_ = false;
  const auto kept = keepIndex(continuation.numbers.empty() ? 0 : continuation.numbers.back());
  if (!kept.ok()) arriving_ = true;
  return kept.status();
}

Status VersionStore::cancelArrival() {
  if (!hidden_) return {};
  arriving_ = true;
  static_cast<void>(keepIndex(0));  // logs its error: a full disk has room for it once the files are gone
  dropHidden(ledgerNumbers());
  {
    const std::scoped_lock hold(indexMutex_, mutex_);
    if (!unremoved_.empty()) {
      return {ErrorCode::io,
              fmt::format("cannot remove '{}', a version that has arrived with a model", unremoved_.front())};
    }
    ledger_.clear();
    history_ = drawId();
    wholeHistory_ = 0;
    ahead_ = 0;
    arrived_ = 0;
    index_ = {.arriving = true};
    arriving_ = false;
  }
  if (const Status kept = keepIndex(0).status(); !kept.ok()) {
    arriving_ = true;
    return kept;
  }
  show();
  return {};
}

Status VersionStore::dropArrived(const std::vector<uint64_t>& numbers) {
  spdlog::info("'{}' has versions of a move that was aborted: they are removed", folder_);
  for (const uint64_t number : numbers) PSD_RETURN_IF_ERROR(env_->remove(versionPath(folder_, number)));
  PSD_RETURN_IF_ERROR(env_->syncFolder(folder_));
  index_ = {};
  // The file says no longer that they are incomplete once they are gone.
  return env_->remove(folder_ + "/" + kVersionIndexName);
}

uint64_t VersionStore::room() const {
  const std::lock_guard hold(mutex_);
  return ledger_.room();
}

std::vector<uint64_t> VersionStore::ledgerNumbers() const {
  const std::lock_guard hold(mutex_);
  return ledger_.numbers();
}

void VersionStore::dropHidden(const std::vector<uint64_t>& numbers) {
  std::vector<std::string> paths;
  {
    const std::lock_guard hold(mutex_);
    paths = takeOut(numbers);
  }
  removeFiles(paths);
  for (const uint64_t number : numbers) patches_.remove(number);
}

}  // namespace psd
