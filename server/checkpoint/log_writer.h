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

/// Writes the log on its own thread. Group commit: everything appended while it was busy goes to disk in one
/// write and one sync, so that many pushes share the wait. When the disk fails, the log is broken: waits for
/// durability resolve, further records are dropped, and rotate() tries a new segment with a new history.
/// Thread-safe.
class LogWriter final : public UpdateLog {
 public:
  /// Opens a new segment as described by `first`, with a number above that of any segment in the folder; if
  /// that fails, the log starts broken. `before`: records of the log that it continues, rewritten and synced
  /// before this returns. `env` outlives the object. `pending`: budget of the bytes that wait to be written.
  /// `syncSeconds`, if not null, records the duration of writes and outlives the object.
  static std::unique_ptr<LogWriter> open(Env& env, const std::string& folder, const SegmentHeader& first,
                                         uint64_t segmentBytesMax,
                                         std::shared_ptr<ByteBudget> pending = ByteBudget::make(UINT64_MAX),
                                         const LastWrite& before = {}, Histogram* syncSeconds = nullptr);
  /// Writes what was appended, and stops the thread.
  ~LogWriter() override;

  kj::Promise<ByteBudget::Lease> space(uint64_t gradientBytes) override;
  uint64_t append(ShardId shard, const AppliedUpdate& update, ByteBudget::Lease space = {}) override;
  /// Appends an assignment, which goes to disk with the next update at the latest. Returns its LSN, or 0 if
  /// the log has failed.
  uint64_t append(const LoggedAssignment& assignment);
  uint64_t append(const BufferSet& buffers, ByteBudget::Lease space) override;
  kj::Promise<void> whenDurable(uint64_t number) override;

  /// Position from which the log continues.
  struct Place {
    uint64_t segment = 0;
    uint64_t history = 0;
  };
  /// Starts a new segment; all earlier segments hold only updates appended before the call returns. Mends a
  /// broken log. Blocks.
  Result<Place> rotate();
  /// Syncs everything appended so far; an Error if the log is broken. Blocks.
  Status flush();
  /// Reports that a checkpoint is finished from which the log continues since rotate(): it covers the records
  /// that a broken log dropped. Also called if the log continues from an existing checkpoint.
  void setBased();
  /// Resolves, on the calling loop, once a finished checkpoint leads to everything appended so far:
  /// immediately, unless the log is broken or has no base yet; then when a checkpoint mends it.
  kj::Promise<void> whenBaseWritten();
  /// Whether a checkpoint leads to the appended records. Otherwise they are not durable, as status() reports.
  bool isBased() const;
  /// Reports that the checkpoint this history starts from failed. If no other checkpoint leads to the
  /// history, it is useless: breaks the log and removes the history's segments. Blocks.
  void abandon(const Status& why);
  /// Removes all segments with a number below `segment`. Blocks.
  Status removeBefore(uint64_t segment);

  /// Called once a second on the log's thread: an Error means that this process lost the folder, and breaks
  /// the log.
  void setFolderCheck(std::function<Status()> folderCheck);

  bool broken() const;
  /// Bytes written so far.
  uint64_t writtenBytes() const;
  /// The log's part of the status.
  LogStatus status() const;

 private:
  using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<void>>;

  LogWriter(Env& env, std::string folder, const SegmentHeader& first, uint64_t segmentBytesMax,
            std::shared_ptr<ByteBudget> space, Histogram* syncSeconds);
  void run();
  /// Fulfills the waiters of takeServedWaiters() with the mutex released.
  void serve(std::unique_lock<std::mutex>& hold);
  /// On the log thread: detects that the current segment was removed while the log was idle.
  void checkInPlace(std::unique_lock<std::mutex>& hold);
  /// On the log thread: writes one batch to the current segment.
  Status write(PendingRecords& batch, uint64_t firstRecord, uint64_t nextRecord);
  Status openSegment(SegmentHeader header);
  Status begin(SegmentHeader header, const LastWrite& before);
  void removeHistory();
  /// Breaks the log. Drops the pending records and `updates`, which were taken out to be written.
  void fail(const Status& status, uint64_t updates = 0);
  /// With the mutex held: removes and returns the waiters for LSNs below `durable_`, or all of them if the
  /// log is broken.
  std::vector<Fulfiller> takeServedWaiters();

  Env& env_;
  const std::string folder_;
  const uint64_t segmentBytesMax_;
  const std::shared_ptr<ByteBudget> room_;
  Histogram* const syncSeconds_;  // null: not measured

  // Used only by the thread, from run() on.
  std::unique_ptr<WritableFile> file_;
  SegmentHeader header_;
  uint64_t segmentBytes_ = 0;
  uint64_t historyFrom_ = 0;  // first segment of the history, if the history starts with this log

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wake_, written_;
  PendingRecords pending_;  // records not sealed yet
  uint64_t pendingFrom_;    // LSN of the first record in pending_
  bool due_ = false;        // pending_ must be written now
  uint64_t next_;           // LSN of the next record
  uint64_t durable_;        // all records below are on disk
  std::vector<std::pair<uint64_t, Fulfiller>> waiters_;
  std::vector<Fulfiller> baseWaiters_;  // waiting for setBased()
  bool broken_ = false;
  bool ending_ = false;
  bool rotate_ = false;
  bool based_ = false;
  std::function<Status()> folderCheck_;
  std::optional<Status> abandoned_;  // why the history must be abandoned
  Result<Place> place_ = Place();
  uint64_t pendingUpdates_ = 0;  // in pending_
  uint64_t records_ = 0, lost_ = 0, syncs_ = 0, bytes_ = 0, failures_ = 0;
  std::string error_;  // why updates may be missing that no checkpoint holds

  std::thread thread_;  // last: it uses all members above
};

}  // namespace psd
