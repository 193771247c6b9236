#include "server/checkpoint/log_writer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <pthread.h>

#include "common/log/log_line.h"
#include "common/os/random_id.h"
#include "common/types/stopwatch.h"

namespace psd {
namespace {

constexpr uint64_t kSpareBytesMax = uint64_t{16} << 20;  // memory of records kept for the next ones
constexpr std::chrono::seconds kCheckInterval{
    1};  // interval at which the log's file is checked to be in place

}  // namespace

std::unique_ptr<LogWriter> LogWriter::open(Env& env, const std::string& folder, const SegmentHeader& first,
                                           uint64_t segmentBytesMax, std::shared_ptr<ByteBudget> pending,
                                           const LastWrite& before, Histogram* syncSeconds) {
  std::unique_ptr<LogWriter> writer(
      new LogWriter(env, folder, first, segmentBytesMax, std::move(pending), syncSeconds));
  if (Status begun = writer->begin(first, before); !begun.ok()) writer->fail(begun);
  writer->thread_ = std::thread([log = writer.get()] { log->run(); });
  return writer;
}

LogWriter::LogWriter(Env& env, std::string folder, const SegmentHeader& first, uint64_t segmentBytesMax,
                     std::shared_ptr<ByteBudget> space, Histogram* syncSeconds)
    : env_(env),
      folder_(std::move(folder)),
      segmentBytesMax_(segmentBytesMax),
      room_(std::move(space)),
      syncSeconds_(syncSeconds),
      pendingFrom_(first.firstRecord),
      next_(first.firstRecord),
      durable_(first.firstRecord) {}

LogWriter::~LogWriter() {
  {
    std::lock_guard hold(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

kj::Promise<ByteBudget::Lease> LogWriter::space(uint64_t gradientBytes) {
  if (broken()) return ByteBudget::Lease();  // nothing waits, because nothing is written
  const uint64_t bytes = gradientBytes == 0 ? 0 : gradientBytes + kRecordBytesBesides;
  if (auto lease = room_->tryTake(bytes)) return kj::mv(*lease);
  return room_->take(bytes);
}

uint64_t LogWriter::append(ShardId shard, const AppliedUpdate& update, ByteBudget::Lease space) {
  std::lock_guard hold(mutex_);
  if (broken_) {
    // 0 counts as durable immediately; no LSN is used up, as the segment that mends the log starts with the
    // next one.
    lost_++;
    return 0;
  }
  const uint64_t number = next_++;
  appendRecord(pending_, std::move(space), number, shard, update);
  pendingUpdates_++;
  records_++;
  due_ = true;
  wake_.notify_one();
  return number;
}

uint64_t LogWriter::append(const BufferSet& buffers, ByteBudget::Lease space) {
  std::lock_guard hold(mutex_);
  if (broken_) return 0;  // the checkpoint that mends the log has them
  const uint64_t number = next_++;
  appendRecord(pending_, std::move(space), number, buffers);
  records_++;
  due_ = true;
  wake_.notify_one();
  return number;
}

uint64_t LogWriter::append(const LoggedAssignment& assignment) {
  std::lock_guard hold(mutex_);
  if (broken_) return 0;  // nothing is lost: the trainer reports its samples when it reconnects
  const uint64_t number = next_++;
  appendRecord(pending_, {}, number, assignment);
  records_++;
  return number;
}

kj::Promise<void> LogWriter::whenDurable(uint64_t number) {
  std::lock_guard hold(mutex_);
  if (broken_ || number < durable_) return kj::READY_NOW;
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<void>();
  waiters_.emplace_back(number, kj::mv(waiter.fulfiller));
  if (!due_) {  // an assignment, which is not written before the next update unless awaited
    due_ = true;
    wake_.notify_one();
  }
  return kj::mv(waiter.promise);
}

Result<LogWriter::Place> LogWriter::rotate() {
  std::unique_lock hold(mutex_);
  rotate_ = true;
  wake_.notify_one();
  written_.wait(hold, [this] { return !rotate_; });
  return place_;
}

Status LogWriter::flush() {
  std::unique_lock hold(mutex_);
  const uint64_t upTo = next_;
  due_ = true;
  wake_.notify_one();
  written_.wait(hold, [this, upTo] { return broken_ || durable_ >= upTo; });
  return broken_ ? Status(ErrorCode::io, "the log is broken: " + error_) : Status();
}

void LogWriter::abandon(const Status& why) {
  std::unique_lock hold(mutex_);
  if (based_) return;
  abandoned_ = Status(ErrorCode::io, "no checkpoint leads to it: " + why.message());
  wake_.notify_one();
  written_.wait(hold, [this] { return !abandoned_; });
}

Status LogWriter::removeBefore(uint64_t segment) {
  PSD_ASSIGN_OR_RETURN(const std::vector<std::string> names, env_.list(folder_));
  bool any = false;
  for (const std::string& name : names) {
    const auto old = segmentOf(name);
    if (!old || *old >= segment) continue;
    PSD_RETURN_IF_ERROR(env_.remove(folder_ + "/" + name));
    any = true;
  }
  return any ? env_.syncFolder(folder_) : Status();
}

void LogWriter::run() {
  pthread_setname_np(pthread_self(), "psd-log");
  PendingRecords batch;
  std::unique_lock hold(mutex_);
  auto nextCheck = std::chrono::steady_clock::now() + kCheckInterval;
  const auto hasWork = [this] { return ending_ || rotate_ || due_ || abandoned_; };
  while (true) {
    wake_.wait_until(hold, nextCheck, hasWork);
    if (const auto now = std::chrono::steady_clock::now(); now >= nextCheck) {
      checkInPlace(hold);
      nextCheck = now + kCheckInterval;
    }
    if (!hasWork()) continue;
    if (ending_ && pending_.empty()) break;
    due_ = false;
    batch.swap(pending_);
    const uint64_t updates = std::exchange(pendingUpdates_, 0);
    const uint64_t upTo = next_, from = std::exchange(pendingFrom_, upTo);
    const bool rotate = rotate_, mend = rotate && broken_;
    const std::optional<Status> abandoned = abandoned_;
    hold.unlock();
    Status status = batch.empty() ? Status() : write(batch, from, upTo);
    batch.clear(kSpareBytesMax);
    if (abandoned) removeHistory();
    if (status.ok() && rotate) {
      SegmentHeader header = header_;
      header.firstRecord = upTo;
      if (mend) header.history = drawId();
      status = openSegment(header);
      if (mend && status.ok()) historyFrom_ = header_.segment;
    }
    hold.lock();
    if (status.ok() && abandoned && !broken_) status = *abandoned;
    if (!status.ok()) {
      fail(status, updates);
    } else {
      if (mend) broken_ = based_ = false;
      if (!broken_) durable_ = upTo;
    }
    abandoned_.reset();
    if (rotate) {
      place_ = status.ok() ? Result<Place>(Place{header_.segment, header_.history}) : status.error();
      rotate_ = false;
    }
    written_.notify_all();
    serve(hold);
  }
  if (file_) static_cast<void>(file_->close());
}

void LogWriter::serve(std::unique_lock<std::mutex>& hold) {
  std::vector<Fulfiller> served = takeServedWaiters();
  hold.unlock();
  for (Fulfiller& waiter : served) waiter->fulfill();
  hold.lock();
}

void LogWriter::checkInPlace(std::unique_lock<std::mutex>& hold) {
  if (broken_) return;
  const std::function<Status()> folderCheck = folderCheck_;
  hold.unlock();
  Status there = file_->inPlace();
  if (there.ok() && folderCheck) there = folderCheck();
  hold.lock();
  if (there.ok()) return;
  fail(there);
  written_.notify_all();
  serve(hold);
}

void LogWriter::removeHistory() {
  if (!file_ || !file_->inPlace().ok()) return;  // another process may hold the folder by now
  for (uint64_t segment = historyFrom_; segment <= header_.segment; segment++) {
    const std::string path = segmentPath(folder_, segment);
    if (const auto there = env_.exists(path); there.ok() && !*there) continue;
    static_cast<void>(env_.remove(path));
  }
  static_cast<void>(env_.syncFolder(folder_));
}

Status LogWriter::write(PendingRecords& batch, uint64_t firstRecord, uint64_t nextRecord) {
  const Stopwatch watch;
  uint64_t bytes = 0;
  for (PendingRecords::Piece& piece : batch.pieces()) {
    sealRecords(piece.bytes, firstRecord, piece.inPlace);
    for (const std::span<const std::byte> part : piece.parts()) {
      if (!part.empty()) PSD_RETURN_IF_ERROR(file_->append(part));
    }
    bytes += piece.size();
  }
  PSD_RETURN_IF_ERROR(file_->sync());
  if (syncSeconds_) syncSeconds_->record(watch.seconds());
  PSD_RETURN_IF_ERROR(file_->inPlace());
  segmentBytes_ += bytes;
  {
    std::lock_guard hold(mutex_);
    syncs_++;
    bytes_ += bytes;
  }
  if (segmentBytes_ < segmentBytesMax_) return {};
  SegmentHeader next = header_;
  next.firstRecord = nextRecord;
  return openSegment(next);
}

Status LogWriter::begin(SegmentHeader header, const LastWrite& before) {
  if (!before.records.empty()) header.firstRecord = before.firstRecord;
  header_.signature = header.signature;  // if this fails, the segment that mends the log needs it too
  const Status opened = openSegment(header);
  historyFrom_ = header_.segment;
  if (!opened.ok() || before.records.empty()) return opened;
  PSD_RETURN_IF_ERROR(copyRecords(env_, folder_, before, *file_));
  for (const LastWrite::Place& place : before.records) segmentBytes_ += place.bytes;
  return file_->sync();
}

Status LogWriter::openSegment(SegmentHeader header) {
  // Never append to an existing segment, regardless of who created it.
  PSD_ASSIGN_OR_RETURN(const uint64_t highest, highestSegment(env_, folder_));
  header.segment = std::max(header_.segment, highest) + 1;
  if (header.segment > kFileNumberMax) {
    return {ErrorCode::io, "'" + segmentPath(folder_, kFileNumberMax) +
                               "' leaves no number for another segment; move it away"};
  }
  header_.segment = header.segment;  // not reused after a failure, so that numbers stay unique
  const std::string path = segmentPath(folder_, header.segment);
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, env_.create(path));
  const Status made = [&]() -> Status {
    PSD_RETURN_IF_ERROR(file->append(formatSegmentHeader(header)));
    PSD_RETURN_IF_ERROR(file->sync());
    return env_.syncFolder(folder_);
  }();
  if (!made.ok()) {
    // On a full disk each attempt would leave an empty file. If the file moved, the name may be another
    // process's.
    if (file->inPlace().ok()) static_cast<void>(env_.remove(path));
    return made;
  }
  if (file_) static_cast<void>(file_->close());  // all of it is synced
  file_ = std::move(file);
  header_ = header;
  segmentBytes_ = kSegmentHeaderBytes;
  return {};
}

void LogWriter::fail(const Status& status, uint64_t updates) {
  broken_ = true;
  failures_++;
  lost_ += updates + std::exchange(pendingUpdates_, 0);
  error_ = status.message();
  pending_.clear(kSpareBytesMax);
  pendingFrom_ = next_;
  logLine(spdlog::level::err, {.event = "failed"},
          "the log is broken: {}; pushes are not durable until the next checkpoint", error_);
}

std::vector<LogWriter::Fulfiller> LogWriter::takeServedWaiters() {
  std::vector<Fulfiller> served;
  for (auto& [number, waiter] : waiters_) {
    if (broken_ || number < durable_) served.push_back(kj::mv(waiter));
  }
  std::erase_if(waiters_, [this](const auto& entry) { return broken_ || entry.first < durable_; });
  return served;
}

void LogWriter::setBased() {
  std::vector<Fulfiller> served;
  {
    std::lock_guard hold(mutex_);
    based_ = true;
    if (!broken_) {
      error_.clear();
      served.swap(baseWaiters_);
    }
  }
  for (Fulfiller& waiter : served) waiter->fulfill();
}

kj::Promise<void> LogWriter::whenBaseWritten() {
  std::lock_guard hold(mutex_);
  if (based_ && !broken_) return kj::READY_NOW;
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<void>();
  baseWaiters_.push_back(kj::mv(waiter.fulfiller));
  return kj::mv(waiter.promise);
}

bool LogWriter::isBased() const {
  std::lock_guard hold(mutex_);
  return based_;
}

bool LogWriter::broken() const {
  std::lock_guard hold(mutex_);
  return broken_;
}

void LogWriter::setFolderCheck(std::function<Status()> folderCheck) {
  std::lock_guard hold(mutex_);
  folderCheck_ = std::move(folderCheck);
}

uint64_t LogWriter::writtenBytes() const {
  std::lock_guard hold(mutex_);
  return bytes_;
}

LogStatus LogWriter::status() const {
  std::lock_guard hold(mutex_);
  return {.records = records_,
          .writtenBytes = bytes_,
          .syncs = syncs_,
          .lost = lost_,
          .failures = failures_,
          .error = error_};
}

}  // namespace psd
