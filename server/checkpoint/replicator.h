#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "server/checkpoint/log_writer.h"
#include "server/checkpoint/pending_records.h"
#include "server/membership/roster.h"
#include "server/store/update_log.h"

namespace psd {

/// A primary's log: numbers the records, buffers those that its standby has not received yet, and resolves
/// waiters for a record once it is in every place that is waited for: the disk, if there is a log on it, and
/// the standby, if waitForStandby() was set. Without a standby a record costs only its number. Thread-safe.
class Replicator final : public UpdateLog {
 public:
  /// `lagBytes`: limit of the bytes that a follower does not hold yet. `needsDisk`: waiters wait for a log on
  /// disk that holds their records, even if it is broken.
  explicit Replicator(uint64_t lagBytes = UINT64_MAX, bool needsDisk = false)
      : lagBytes_(lagBytes), needsDisk_(needsDisk) {}
  ~Replicator() noexcept override {}

  kj::Promise<ByteBudget::Lease> space(uint64_t gradientBytes) override;
  uint64_t append(ShardId shard, const AppliedUpdate& update, ByteBudget::Lease space) override;
  uint64_t append(const BufferSet& buffers, ByteBudget::Lease space) override;
  /// Appends an assignment of samples; returns its LSN.
  uint64_t append(const LoggedAssignment& assignment);
  /// Appends the departed ranks so far; returns the LSN. Sent only to the standby.
  uint64_t append(const Departed& departed);
  /// Appends a change of a file beside the model; returns the LSN. Sent only to the standby.
  uint64_t append(const FileChange& change);
  kj::Promise<void> whenDurable(uint64_t number) override;
  /// The logged blocks are replaced from now on: a follower of the previous ones cannot continue.
  void resetFollowers();
  /// Sets the log on disk from now on; null: none.
  void setDisk(std::shared_ptr<LogWriter> disk);

  /// Limit on the memory that a stream keeps for the next records: one of the largest shard by default.
  static constexpr uint64_t kSpareBytesMax = uint64_t{72} << 20;

  /// Identifies one follower's stream; rises.
  using Stream = uint64_t;
  /// Buffers what is appended from now on for a new follower; ends the previous follower's stream.
  Stream open();
  /// Ends an open stream: drops its buffer and resolves those that wait for capacity.
  void close(Stream stream);

  /// Records taken out by a stream's reader.
  struct Batch {
    PendingRecords records;  ///< sealed, in order
    uint64_t next = 0;       ///< number of the first record that is not in it
    uint64_t bytes = 0;
  };
  /// Resolves, on the calling loop, once the stream has records, or has ended. One caller at a time.
  kj::Promise<void> whenFilled(Stream stream);
  /// All buffered records. Nothing: the stream has ended. `into` lends its memory to the next ones.
  std::optional<Batch> take(Stream stream, PendingRecords into);
  /// The follower holds all records below `next`; `bytes` is their size since the last call.
  void held(Stream stream, uint64_t next, uint64_t bytes);

  /// Sets whether waiters wait until the follower holds a record; applies to records appended from now on and
  /// to those already in the stream.
  void waitForStandby(bool waits);

  /// Whether a follower's stream is open.
  bool followed() const;
  /// Raises the next record's number to at least `next`.
  void resumeFrom(uint64_t next);
  /// Number of the next record.
  uint64_t next() const;
  /// The follower holds all records below this number.
  uint64_t heldTo() const;
  /// Size of the records that the follower does not hold yet.
  uint64_t lagBytes() const;

 private:
  using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<void>>;
  using Fulfillers = std::vector<Fulfiller>;

  /// The disk's log has record `from` as `onDisk`, and the next ones under the next numbers, up to a record
  /// that it lacks.
  struct DiskNumbers {
    uint64_t from = 1, onDisk = 1;
    uint64_t at(uint64_t number) const { return onDisk + (number - from); }
  };

  /// Numbers a record, writes it to the disk's log by `toDisk(log)`, which returns its number there, and adds
  /// it to the follower's stream.
  template <class ToDisk, class... Record>
  uint64_t add(const ToDisk& toDisk, uint64_t bytes, const Record&... record);

  // All require the mutex.
  bool streams(Stream stream) const { return stream_ == stream && open_; }
  uint64_t number(uint64_t diskNumber);
  bool isHeld(uint64_t number) const { return !waits_ || number < held_; }
  kj::Promise<void> whenOnDisk(uint64_t number) const;
  void end(Fulfillers& wake);
  Fulfillers takeServed();
  void wakeReader(Fulfillers& wake);

  const uint64_t lagBytes_;
  const bool needsDisk_;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<LogWriter> disk_;
  std::vector<DiskNumbers> diskNumbers_;  // the newest, in order
  uint64_t newestOnDisk_ = 0;             // number there of the newest record that it has
  uint64_t next_ = 1;
  bool waits_ = false;
  Stream stream_ = 0;
  bool open_ = false;
  PendingRecords pending_;
  uint64_t pendingBytes_ = 0;
  uint64_t unheldBytes_ = 0;  // in pending_, or taken out and not held yet
  uint64_t held_ = 1;
  Fulfillers roomWaiters_;
  kj::Maybe<Fulfiller> reader_;
  std::vector<std::pair<uint64_t, Fulfiller>> waiters_;
};

}  // namespace psd
