#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/log_format.h"
#include "server/checkpoint/log_reader.h"
#include "server/checkpoint/pending_records.h"
#include "server/metrics/histogram.h"
#include "server/status/daemon_status.h"

namespace psd {

/// Writes the log, on a thread of its own: all that came while it was busy goes to the disk in one write and
/// one sync, so that many pushes share the wait. When the disk fails, the log is broken: whoever waits for it
/// goes on, what comes is not written, and rotate() tries a new segment with a new history. Thread-safe.
class LogWriter final : public UpdateLog {
 public:
  /// Begins with a segment as `first` describes it, but for its number, which is one more than that of any
  /// segment in the folder; broken from the start when it cannot be made. `before`: what else it is to hold,
  /// of the log that it goes on from: it is on the disk when this returns. `env` outlives the object.
  /// `pending`: what may wait to be written. `syncSeconds`, where not null, outlives it too: how long the
  /// writes take.
  static std::unique_ptr<LogWriter> open(Env& env, const std::string& folder, const SegmentHeader& first,
                                         uint64_t segmentBytesMax,
                                         std::shared_ptr<ByteBudget> pending = ByteBudget::make(UINT64_MAX),
                                         const LastWrite& before = {}, Histogram* syncSeconds = nullptr);
  /// Writes what was appended, and ends the thread.
  ~LogWriter() override;

  kj::Promise<ByteBudget::Lease> room(uint64_t gradientBytes) override;
  uint64_t append(ShardId shard, const AppliedUpdate& update, ByteBudget::Lease room = {}) override;
  /// Appends a deal, which goes to the disk with the next update at the latest. Gives its number in the log,
  /// or 0 where the log has failed.
  uint64_t append(const LoggedDeal& deal);
  kj::Promise<void> whenDurable(uint64_t number) override;

  /// The place at which the log goes on.
  struct Place {
    uint64_t segment = 0;
    uint64_t history = 0;
  };
  /// Begins a new segment: every update before it was appended before this returned. Mends a broken log.
  /// Blocks.
  Result<Place> rotate();
  /// Brings what was appended until now to the disk; an Error when the log is broken. Blocks.
  Status flush();
  /// A checkpoint is finished that the log goes on from since rotate(): what a broken log did not take is in
  /// it. Or the log goes on from one that was there before.
  void based();
  /// Resolves, on the calling loop, once a finished checkpoint leads to everything appended so far. At once,
  /// unless the log is broken or has no base yet; then when a checkpoint mends it.
  kj::Promise<void> whenBased();
  /// Whether a checkpoint leads to what is appended. Else nothing is promised of it: status() says so.
  bool isBased() const;
  /// The checkpoint to go on from was not finished. Where no other one leads to this history it is of no use
  /// to anybody: the log is broken, and the history's segments are removed. Blocks.
  void abandon(const Status& why);
  /// Removes the segments with a number below `segment`. Blocks.
  Status removeBefore(uint64_t segment);

  /// Called once a second, on the log's thread: an Error breaks the log, as the folder is not this process's.
  void whileHeld(std::function<Status()> holdFolder);

  bool broken() const;
  /// Bytes that were written so far.
  uint64_t writtenBytes() const;
  /// The log's part of the status.
  LogStatus status() const;

 private:
  using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<void>>;

  LogWriter(Env& env, std::string folder, const SegmentHeader& first, uint64_t segmentBytesMax,
            std::shared_ptr<ByteBudget> room, Histogram* syncSeconds);
  void run();
  /// Resolves the waits of takeServed(), with the lock given up meanwhile.
  void serve(std::unique_lock<std::mutex>& hold);
  /// The thread's: the current segment may have been taken away while nothing was written.
  void look(std::unique_lock<std::mutex>& hold);
  /// The thread's: writes one batch to the current segment.
  Status write(PendingRecords& batch, uint64_t firstRecord, uint64_t nextRecord);
  Status openSegment(SegmentHeader header);
  Status begin(SegmentHeader header, const LastWrite& before);
  void removeHistory();
  /// Breaks the log. Lost are what is pending and `updates`, which were taken out to be written.
  void fail(const Status& status, uint64_t updates = 0);
  /// With the mutex held: takes the fulfillers out of waiters_ that wait for a number below `durable_`, or
  /// all of them when the log is broken.
  std::vector<Fulfiller> takeServed();

  Env& env_;
  const std::string folder_;
  const uint64_t segmentBytesMax_;
  const std::shared_ptr<ByteBudget> room_;
  Histogram* const syncSeconds_;  // null: nobody wants to know

  // The thread's alone, from run() on.
  std::unique_ptr<WritableFile> file_;
  SegmentHeader header_;
  uint64_t segmentBytes_ = 0;
  uint64_t historyFrom_ = 0;  // first segment of the history, where that began with this log

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, written_;
  PendingRecords pending_;  // records that are not sealed yet
  uint64_t pendingFrom_;    // number of the first record in pending_
  bool due_ = false;        // pending_ is to be written now
  uint64_t next_;           // number of the next record
  uint64_t durable_;        // all below are on the disk
  std::vector<std::pair<uint64_t, Fulfiller>> waiters_;
  std::vector<Fulfiller> baseWaiters_;  // for based()
  bool broken_ = false;
  bool ending_ = false;
  bool rotate_ = false;
  bool based_ = false;
  std::function<Status()> holdFolder_;
  std::optional<Status> abandoned_;  // why the history is to be given up
  Result<Place> place_ = Place();
  uint64_t pendingUpdates_ = 0;  // in pending_
  uint64_t records_ = 0, lost_ = 0, syncs_ = 0, bytes_ = 0, failures_ = 0;
  std::string error_;  // why updates may be missing that no checkpoint holds

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace psd
