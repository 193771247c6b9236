#include "server/replica/follower.h"

#include <algorithm>
#include <cstring>
#include <new>

#include <pthread.h>
#include <spdlog/spdlog.h>

namespace psd {
namespace {

constexpr size_t kWarmBytes = 192 << 10;  // a piece that the second-level cache holds until it is checked
constexpr uint64_t kRecordBytesLeast = 4ull << 30;  // always accepted, whatever the configuration says
// Memory of applied records that is kept for the next ones, at most that of a record of the largest shard by
// default; small records are cheap to allocate.
constexpr uint64_t kSpareBytesMin = uint64_t{64} << 10, kSpareBytesMax = uint64_t{72} << 20;

Status noMemory(const char* what) {
  return {ErrorCode::overloaded, std::string("the standby is out of memory for the primary's ") + what};
}

/// The result of `work()`; an Error if memory runs out.
template <class Work>
Status within(const char* what, const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return noMemory(what);
  }
}

template <class Fulfillers>
void fulfillAll(Fulfillers& fulfillers) {
  for (auto& each : fulfillers) each->fulfill();
}

}  // namespace

Follower::Follower(const ReplicationConfig& config, Restore restore)
    : config_(config), restore_(std::move(restore)), thread_([this] { run(); }) {}

Follower::~Follower() {
  {
    const std::lock_guard hold(mutex_);
    ending_ = true;
    queue_.clear();
    if (status_.ok()) status_ = {ErrorCode::unavailable, "the standby discarded its copy"};
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

Status Follower::image(const ImagePart& part) {
  {
    const std::lock_guard hold(mutex_);
    PSD_RETURN_IF_ERROR(status_);
    if (!imagePath_.empty()) return {ErrorCode::invalidArgument, "the checkpoint is complete already"};
  }
  const Status kept = !part.renamedTo.empty() ? files_.rename(part.path, part.renamedTo)
                                              : files_.append(part.path, part.bytes);
  if (!kept.ok()) fail(kept);
  return kept;
}

Status Follower::outOfMemory() {
  const Status status = noMemory("model");
  fail(status);
  return status;
}

kj::Promise<Status> Follower::imageDone(std::string path) {
  const std::lock_guard hold(mutex_);
  if (!status_.ok()) return status_;
  if (!imagePath_.empty() || path.empty()) {
    return Status(ErrorCode::invalidArgument, "the checkpoint is complete already, or has no path");
  }
  imagePath_ = std::move(path);
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<Status>();
  imageWaiter_ = kj::mv(waiter.fulfiller);
  wake_.notify_one();
  return kj::mv(waiter.promise);
}

Result<uint64_t> Follower::announced() const {
  const auto bytes = recordBytes(std::span(arriving_).first<kRecordPrefixBytes>());
  if (!bytes) return Error{ErrorCode::invalidArgument, "the bytes from the primary are not a log record"};
  if (const uint64_t most = std::max(config_.catchUpBytes, kRecordBytesLeast); *bytes > most) {
    return Error{ErrorCode::overloaded,
                 "a record of the primary has " + std::to_string(*bytes) +
                     " bytes: replication.catch_up_bytes must be at least that at this daemon, and is " +
                     std::to_string(config_.catchUpBytes)};
  }
  return *bytes;
}

Status Follower::arrive(std::span<const std::byte>& bytes) {
  const size_t missing = arrivingBytes_.value_or(kRecordPrefixBytes) - arriving_.size();
  const auto some = bytes.first(std::min({missing, bytes.size(), kWarmBytes}));
  arriving_.insert(arriving_.end(), some.begin(), some.end());
  bytes = bytes.subspan(some.size());
  if (arrivingBytes_) arrivingChecksum_.add(some);
  if (some.size() < missing) return {};
  if (!arrivingBytes_) {
    PSD_ASSIGN_OR_RETURN(arrivingBytes_, announced());
    Bytes record = memoryFor(*arrivingBytes_);
    record.assign(arriving_.begin(), arriving_.end());
    arriving_ = std::move(record);
    arrivingChecksum_ = RecordChecksum(std::span(arriving_).first<kRecordPrefixBytes>());
    return {};
  }
  if (!arrivingChecksum_.right()) {
    return {ErrorCode::invalidArgument, "a record from the primary has a wrong checksum"};
  }
  arrivingBytes_.reset();
  return take(std::exchange(arriving_, {}));
}

Status Follower::take(Bytes record) {
  uint64_t number = 0;
  std::memcpy(&number, record.data() + kRecordPrefixBytes, sizeof number);
  const std::lock_guard hold(mutex_);
  if (held_ != 0 && number != held_) {
    return {ErrorCode::invalidArgument, "record " + std::to_string(number) +
                                            " came from the primary instead of " + std::to_string(held_)};
  }
  if (held_ == 0) applied_ = number;
  held_ = number + 1;
  queuedBytes_ += record.size();
  queue_.push_back(std::move(record));
  return {};
}

kj::Promise<Result<FollowerProgress>> Follower::records(std::span<const std::byte> bytes) {
  using Outcome = Result<FollowerProgress>;
  if (const auto now = progress(); !now.ok()) return Outcome(now.error());
  const Status all = within("records", [&]() -> Status {
    for (auto left = bytes; !left.empty();) PSD_RETURN_IF_ERROR(arrive(left));
    return {};
  });
  if (!all.ok()) {
    fail(all);
    return Outcome(all.error());
  }
  const std::lock_guard hold(mutex_);
  if (const Status now = taking(); !now.ok()) return Outcome(now.error());
  wake_.notify_one();
  if (keeps_ && kept_ < held_) {
    auto kept = kj::newPromiseAndCrossThreadFulfiller<void>();
    keptWaiters_.emplace_back(held_, kj::mv(kept.fulfiller));
    return kept.promise.then([this] { return progress(); });
  }
  if (queuedBytes_ <= bytesMax()) return Outcome(progressNow());
  auto room = kj::newPromiseAndCrossThreadFulfiller<void>();
  roomWaiters_.push_back(kj::mv(room.fulfiller));
  return room.promise.then([this] { return progress(); });
}

uint64_t Follower::heldNow() const {
  // The primary's configuration, which arrives with the checkpoint, decides whether records must be on disk.
  if (config_.wait != ReplicationConfig::Wait::standbyAndDisk) return held_;
  if (!restored_) return 0;
  return keeps_ ? kept_ : held_;
}

uint64_t Follower::bytesMax() const { return restored_ ? config_.lagBytes : config_.catchUpBytes; }

Result<FollowerProgress> Follower::progress() const {
  const std::lock_guard hold(mutex_);
  PSD_RETURN_IF_ERROR(taking());
  return progressNow();
}

Status Follower::taking() const {
  if (status_.ok() && leaving_) return {ErrorCode::shuttingDown, "the standby is about to exit"};
  return status_;
}

uint64_t Follower::lagBytes() const {
  const std::lock_guard hold(mutex_);
  return queuedBytes_;
}

uint64_t Follower::lagRecords() const {
  const std::lock_guard hold(mutex_);
  return held_ - applied_;
}

bool Follower::restoring() const {
  const std::lock_guard hold(mutex_);
  return !imagePath_.empty() && !restored_ && status_.ok();
}

bool Follower::hasWork() const {
  if (ending_ || !status_.ok()) return true;
  return restored_ ? !queue_.empty() : !imagePath_.empty();
}

void Follower::run() {
  pthread_setname_np(pthread_self(), "psd-follow");
  kj::EventLoop loop;  // ShardLock waits with promises; this thread may block on them
  kj::WaitScope scope(loop);
  run(scope);
}

void Follower::run(kj::WaitScope& scope) {
  std::unique_lock hold(mutex_);
  while (true) {
    wake_.wait(hold, [this] { return hasWork(); });
    if (!status_.ok() || (ending_ && (queue_.empty() || !restored_))) break;
    if (!restored_) {
      const std::string path = imagePath_;
      hold.unlock();
      const Status restored = within("model", [&] { return restore(path, scope); });
      hold.lock();
      if (!restored.ok() && status_.ok()) status_ = restored;
      restored_ = restored.ok();
      keeps_ = restored_ && disk_;
      kept_ = applied_;
      auto waiter = std::exchange(imageWaiter_, {});
      hold.unlock();
      if (waiter) (*waiter)->fulfill(Status(restored));
      hold.lock();
      continue;
    }
    std::deque<Bytes> records = std::exchange(queue_, {});
    hold.unlock();
    const Status applied = within("records", [&] { return apply(std::move(records)); });
    hold.lock();
    if (!applied.ok() && status_.ok()) status_ = applied;
  }
  auto waiters = std::exchange(roomWaiters_, {});
  for (auto& [number, waiter] : keptWaiters_) waiters.push_back(kj::mv(waiter));
  keptWaiters_.clear();
  for (Fulfiller& waiter : std::exchange(endWaiters_, {})) waiters.push_back(kj::mv(waiter));
  ended_ = true;
  auto image = std::exchange(imageWaiter_, {});
  const Status status = status_;
  hold.unlock();
  fulfillAll(waiters);
  if (image)
    (*image)->fulfill(status.ok() ? Status(ErrorCode::unavailable, "the standby exits") : Status(status));
}

Status Follower::restore(const std::string& path, kj::WaitScope& scope) {
  PSD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, openCheckpoint(files_, path));
  PSD_ASSIGN_OR_RETURN(CopyPlace place, restore_(files_, checkpoint));
  for (const ManifestFile* file : filesOf(checkpoint.manifest))
    static_cast<void>(files_.remove(path + "/" + file->file));
  disk_ = std::move(place.disk);
  standbyFiles_ = std::move(place.files);
  samples_.emplace(checkpoint.manifest, disk_ ? disk_->samples() : std::make_shared<GuardedSamples>());
  replayer_ = std::make_unique<Replayer>(*place.store, ReplayEnd(), &*samples_);
  if (!disk_) return {};
  replayer_->lockWith(scope, disk_->groupLocks());
  PSD_RETURN_IF_ERROR(progress().status());  // it may have been discarded meanwhile
  return disk_->begin();
}

Status Follower::apply(std::deque<Bytes> records) {
  for (Bytes& record : records) {
    const uint64_t bytes = record.size();
    PSD_RETURN_IF_ERROR(apply(std::move(record)));
    std::vector<Fulfiller> waiters;
    {
      const std::lock_guard hold(mutex_);
      applied_++;
      queuedBytes_ -= bytes;
      if (queuedBytes_ <= bytesMax()) waiters = std::exchange(roomWaiters_, {});
    }
    fulfillAll(waiters);
  }
  return disk_ ? keep() : Status();
}

Status Follower::keep() {
  const Status flushed = disk_->flush();
  std::vector<Fulfiller> waiters;
  {
    const std::lock_guard hold(mutex_);
    // At a takeover (ending_) this copy is all there is: continue without the disk.
    if (!flushed.ok()) return ending_ ? Status() : flushed;
    kept_ = applied_;
    for (auto& [number, waiter] : keptWaiters_) {
      if (number <= kept_) waiters.push_back(kj::mv(waiter));
    }
    std::erase_if(keptWaiters_, [this](const auto& entry) { return entry.first <= kept_; });
  }
  fulfillAll(waiters);
  return {};
}

Status Follower::apply(Bytes bytes) {
  PSD_ASSIGN_OR_RETURN(LogRecord record, parseVerifiedRecord(std::move(bytes)));
  if (record.departed) {
    departed_ = std::move(record.departed);
    return disk_ ? disk_->departed(*departed_) : Status();
  }
  if (record.file) return apply(*record.file);
  const std::optional<LoggedAssignment> assignment = record.assignment;
  PSD_RETURN_IF_ERROR(replayer_->apply(record));
  reuse(std::move(record.bytes));  // empty if the record is held back
  if (assignment && disk_) disk_->assigned(*assignment);
  return {};
}

Follower::Bytes Follower::memoryFor(uint64_t bytes) {
  Bytes memory;
  {
    const std::lock_guard hold(mutex_);
    const auto fits = std::ranges::find_if(
        spare_, [&](const Bytes& some) { return some.capacity() >= bytes && some.capacity() / 2 <= bytes; });
    if (fits != spare_.end()) {
      memory = std::move(*fits);
      spare_.erase(fits);
    }
  }
  memory.reserve(bytes);
  return memory;
}

void Follower::reuse(Bytes memory) {
  if (memory.capacity() < kSpareBytesMin || memory.capacity() > kSpareBytesMax) return;
  memory.clear();
  const std::lock_guard hold(mutex_);
  spare_.push_back(std::move(memory));
  uint64_t kept = 0;
  for (const Bytes& spare : spare_) kept += spare.capacity();
  for (; kept > kSpareBytesMax; spare_.pop_front()) kept -= spare_.front().capacity();  // the oldest
}

Status Follower::apply(const FileChange& change) {
  const Status applied = standbyFiles_ ? standbyFiles_->apply(change) : Status();
  if (applied.ok()) return {};
  const std::lock_guard hold(mutex_);
  if (!ending_) return applied;
  // At a takeover this copy of the model is all there is: continue without the file.
  spdlog::error("a file of the primary is incomplete: {}", applied.message());
  hasAllFiles_ = false;
  return {};
}

void Follower::fail(const Status& status) {
  const std::lock_guard hold(mutex_);
  if (status_.ok()) status_ = status;
  wake_.notify_one();
}

void Follower::leave() {
  const std::lock_guard hold(mutex_);
  leaving_ = true;
}

kj::Promise<void> Follower::end() {
  fail({ErrorCode::shuttingDown, "the run is over"});
  const std::lock_guard hold(mutex_);
  if (ended_) return kj::READY_NOW;
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<void>();
  endWaiters_.push_back(kj::mv(waiter.fulfiller));
  return kj::mv(waiter.promise);
}

Result<FollowedState> Follower::finish() {
  {
    const std::lock_guard hold(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  PSD_RETURN_IF_ERROR(status_);
  if (!restored_) return Error{ErrorCode::notReady, "the primary's model has not been received yet"};
  if (disk_) disk_->keepSaving();
  standbyFiles_ = nullptr;  // removes an unfinished file
  return FollowedState{std::move(*samples_).finish(), std::move(departed_), replayer_->applied(), held_,
                       hasAllFiles_};
}

}  // namespace psd
