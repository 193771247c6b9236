#include "server/checkpoint/replicator.h"

#include <algorithm>

#include "server/checkpoint/log_format.h"

namespace psd {
namespace {

constexpr size_t kDiskNumbersMax = 8;  // of what is not on disk yet, usually

void fulfillAll(std::vector<kj::Own<kj::CrossThreadPromiseFulfiller<void>>>& fulfillers) {
  for (auto& each : fulfillers) each->fulfill();
}

}  // namespace

kj::Promise<ByteBudget::Lease> Replicator::space(uint64_t gradientBytes) {
  std::shared_ptr<LogWriter> disk;
  kj::Promise<void> followed = kj::READY_NOW;
  {
    const std::lock_guard hold(mutex_);
    disk = disk_;
    if (open_ && unheldBytes_ >= lagBytes_) {
      auto waiter = kj::newPromiseAndCrossThreadFulfiller<void>();
      roomWaiters_.push_back(kj::mv(waiter.fulfiller));
      followed = kj::mv(waiter.promise);
    }
  }
  if (!disk) return followed.then([] { return ByteBudget::Lease(); });
  return followed.then([disk, gradientBytes] { return disk->space(gradientBytes); });
}

uint64_t Replicator::number(uint64_t diskNumber) {
  const uint64_t number = next_++;
  if (diskNumber == 0) return number;
  const bool follows = !diskNumbers_.empty() && diskNumbers_.back().at(number) == diskNumber;
  if (!follows) diskNumbers_.push_back({number, diskNumber});
  if (diskNumbers_.size() > kDiskNumbersMax) diskNumbers_.erase(diskNumbers_.begin());
  newestOnDisk_ = diskNumber;
  return number;
}

template <class ToDisk, class... Record>
uint64_t Replicator::add(const ToDisk& toDisk, uint64_t bytes, const Record&... record) {
  Fulfillers wake;
  std::unique_lock hold(mutex_);
  const uint64_t own = number(disk_ ? toDisk(*disk_) : 0);
  if (open_) {
    appendRecord(pending_, {}, own, record...);
    pendingBytes_ += bytes;
    unheldBytes_ += bytes;
  }
  wakeReader(wake);
  hold.unlock();
  fulfillAll(wake);
  return own;
}

uint64_t Replicator::append(ShardId shard, const AppliedUpdate& update, ByteBudget::Lease space) {
  const auto toDisk = [&](LogWriter& disk) { return disk.append(shard, update, std::move(space)); };
  return add(toDisk, recordBytes(update), shard, update);
}

uint64_t Replicator::append(const BufferSet& buffers, ByteBudget::Lease space) {
  const auto toDisk = [&](LogWriter& disk) { return disk.append(buffers, std::move(space)); };
  return add(toDisk, recordBytes(buffers), buffers);
}

uint64_t Replicator::append(const LoggedAssignment& assignment) {
  return add([&](LogWriter& disk) { return disk.append(assignment); }, recordBytes(assignment), assignment);
}

uint64_t Replicator::append(const Departed& departed) {
  return add([](LogWriter&) { return uint64_t{0}; }, recordBytes(departed), departed);
}

uint64_t Replicator::append(const FileChange& change) {
  return add([](LogWriter&) { return uint64_t{0}; }, recordBytes(change), change);
}

kj::Promise<void> Replicator::whenOnDisk(uint64_t number) const {
  if (!disk_) return kj::READY_NOW;
  const auto numbers = std::find_if(diskNumbers_.rbegin(), diskNumbers_.rend(),
                                    [number](const DiskNumbers& some) { return some.from <= number; });
  kj::Promise<void> written = kj::READY_NOW;
  if (numbers != diskNumbers_.rend()) {
    written = disk_->whenDurable(std::min(numbers->at(number), newestOnDisk_));
  } else if (!diskNumbers_.empty()) {
    written = disk_->whenDurable(diskNumbers_.front().onDisk);  // a later record: the log is written in order
  }
  // A record that a broken log lacks only gets to disk with a checkpoint: callers that need it there wait for
  // that checkpoint.
  if (!needsDisk_) return written;
  return written.then([disk = disk_] { return disk->whenBaseWritten(); });
}

kj::Promise<void> Replicator::whenDurable(uint64_t number) {
  const std::lock_guard hold(mutex_);
  kj::Promise<void> onDisk = whenOnDisk(number);
  if (isHeld(number)) return onDisk;
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<void>();
  waiters_.emplace_back(number, kj::mv(waiter.fulfiller));
  return onDisk.then([held = kj::mv(waiter.promise)]() mutable { return kj::mv(held); });
}

void Replicator::setDisk(std::shared_ptr<LogWriter> disk) {
  const std::lock_guard hold(mutex_);
  disk_ = std::move(disk);
  diskNumbers_.clear();
}

Replicator::Stream Replicator::open() {
  Fulfillers wake;
  std::unique_lock hold(mutex_);
  end(wake);
  stream_++;
  open_ = true;
  if (!waits_) held_ = next_;  // else records are still awaited from the previous follower
  const Stream opened = stream_;
  hold.unlock();
  fulfillAll(wake);
  return opened;
}

void Replicator::end(Fulfillers& wake) {
  open_ = false;
  pending_ = PendingRecords();
  pendingBytes_ = unheldBytes_ = 0;
  for (Fulfiller& waiter : roomWaiters_) wake.push_back(kj::mv(waiter));
  roomWaiters_.clear();
  wakeReader(wake);
}

void Replicator::close(Stream stream) {
  Fulfillers wake;
  std::unique_lock hold(mutex_);
  if (streams(stream)) end(wake);
  hold.unlock();
  fulfillAll(wake);
}

void Replicator::resetFollowers() {
  Fulfillers wake;
  std::unique_lock hold(mutex_);
  if (open_) end(wake);
  hold.unlock();
  fulfillAll(wake);
}

void Replicator::wakeReader(Fulfillers& wake) {
  if (open_ && pendingBytes_ == 0) return;
  KJ_IF_MAYBE (reader, reader_) {
    wake.push_back(kj::mv(*reader));
    reader_ = nullptr;
  }
}

kj::Promise<void> Replicator::whenFilled(Stream stream) {
  const std::lock_guard hold(mutex_);
  if (!streams(stream) || pendingBytes_ > 0) return kj::READY_NOW;
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<void>();
  reader_ = kj::mv(waiter.fulfiller);
  return kj::mv(waiter.promise);
}

std::optional<Replicator::Batch> Replicator::take(Stream stream, PendingRecords into) {
  Batch batch;
  batch.records = std::move(into);
  batch.records.clear(kSpareBytesMax);
  {
    const std::lock_guard hold(mutex_);
    if (!streams(stream)) return {};
    batch.records.swap(pending_);
    batch.next = next_;
    batch.bytes = std::exchange(pendingBytes_, 0);
  }
  for (PendingRecords::Piece& piece : batch.records.pieces()) sealRecords(piece.bytes, 0, piece.inPlace);
  return batch;
}

void Replicator::held(Stream stream, uint64_t next, uint64_t bytes) {
  Fulfillers wake;
  {
    const std::lock_guard hold(mutex_);
    if (!streams(stream)) return;
    held_ = std::max(held_, next);
    unheldBytes_ -= std::min(bytes, unheldBytes_);
    wake = takeServed();
    if (unheldBytes_ < lagBytes_) {
      for (Fulfiller& waiter : roomWaiters_) wake.push_back(kj::mv(waiter));
      roomWaiters_.clear();
    }
  }
  fulfillAll(wake);
}

Replicator::Fulfillers Replicator::takeServed() {
  Fulfillers served;
  for (auto& [number, waiter] : waiters_) {
    if (isHeld(number)) served.push_back(kj::mv(waiter));
  }
  std::erase_if(waiters_, [this](const auto& entry) { return isHeld(entry.first); });
  return served;
}

void Replicator::waitForStandby(bool waits) {
  Fulfillers wake;
  {
    const std::lock_guard hold(mutex_);
    waits_ = waits;
    wake = takeServed();
  }
  fulfillAll(wake);
}

void Replicator::resumeFrom(uint64_t next) {
  const std::lock_guard hold(mutex_);
  next_ = std::max(next_, next);
  held_ = std::max(held_, next_);
}

bool Replicator::followed() const {
  const std::lock_guard hold(mutex_);
  return open_;
}

uint64_t Replicator::next() const {
  const std::lock_guard hold(mutex_);
  return next_;
}

uint64_t Replicator::heldTo() const {
  const std::lock_guard hold(mutex_);
  return held_;
}

uint64_t Replicator::lagBytes() const {
  const std::lock_guard hold(mutex_);
  return unheldBytes_;
}

}  // namespace psd
