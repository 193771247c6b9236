#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "server/checkpoint/log_writer.h"
#include "server/checkpoint/pending_records.h"
#include "server/checkpoint/replicated_log.h"
#include "server/replica/replication_config.h"

namespace psd {

/// A primary's log: numbers the records, keeps those that its standby is still to get, and lets who waits for
/// a record go on once it is on all places that are waited for: the disk, where there is a log on it, and the
/// standby, where waitForStandby() says so. With Wait::standbyAndDisk a log that is broken is waited for
/// until it is mended. Without a standby it costs a number. Thread-safe.
class Replicator final : public ReplicatedLog {
 public:
  explicit Replicator(const ReplicationConfig& config)
      : lagBytes_(config.lagBytes), needsDisk_(config.wait == ReplicationConfig::Wait::standbyAndDisk) {}
  ~Replicator() noexcept override {}

  kj::Promise<ByteBudget::Lease> room(uint64_t gradientBytes) override;
  uint64_t append(ShardId shard, const AppliedUpdate& update, ByteBudget::Lease room) override;
  uint64_t append(const LoggedDeal& deal) override;
  uint64_t append(const Departed& departed) override;
  kj::Promise<void> whenDurable(uint64_t number) override;
  void beginAnew() override;
  void setDisk(std::shared_ptr<LogWriter> disk) override;

  /// Names one follower's stream; rises.
  using Stream = uint64_t;
  /// Keeps what is appended from now on for a new follower, and nothing for one before.
  Stream open();
  /// Ends a stream that goes on: what it kept is dropped, and whoever waited for room goes on.
  void close(Stream stream);

  /// What a stream's reader takes out.
  struct Batch {
    PendingRecords records;  ///< sealed, one after the other
    uint64_t next = 0;       ///< number of the first record that is not in it
    uint64_t bytes = 0;
  };
  /// Resolves, on the calling loop, once the stream has records, or has ended. One caller at a time.
  kj::Promise<void> whenFilled(Stream stream);
  /// All records that are there. Nothing: the stream has ended. `into` gives its memory for those to come.
  std::optional<Batch> take(Stream stream, PendingRecords into);
  /// The follower holds all records below `next`, which were so many bytes since it was said before.
  void held(Stream stream, uint64_t next, uint64_t bytes);

  /// From now on what is appended, and what was appended to the stream before, is waited for until the
  /// follower holds it; or no longer.
  void waitForStandby(bool waits);

  /// The next record has at least that number.
  void goOnFrom(uint64_t next);
  /// Number that the next record has.
  uint64_t next() const;
  /// All records below it are held by the follower.
  uint64_t heldTo() const;
  /// Of records that the follower does not hold yet.
  uint64_t lagBytes() const;

 private:
  using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<void>>;
  using Fulfillers = std::vector<Fulfiller>;

  /// From the record `from` on, the disk's log has the record n under the number n − behind, or, where it is
  /// broken, not at all.
  struct DiskNumbers {
    uint64_t from = 1;
    uint64_t behind = 0;
    bool broken = false;
  };

  /// Numbers a record, hands it to the disk by `toDisk(log)`, which gives its number there, and to the
  /// follower.
  template <class ToDisk, class... Record>
  uint64_t add(const ToDisk& toDisk, uint64_t bytes, const Record&... record);

  // All with the mutex held.
  bool streams(Stream stream) const { return stream_ == stream && open_; }
  uint64_t number(uint64_t diskNumber);
  /// Makes room in the stream for a record of so many bytes; null: nobody follows.
  std::vector<std::byte>* place(uint64_t bytes);
  bool isHeld(uint64_t number) const { return !waits_ || number < held_; }
  kj::Promise<void> whenOnDisk(uint64_t number) const;
  void end(Fulfillers& wake);
  Fulfillers takeServed();
  void wakeReader(Fulfillers& wake);

  const uint64_t lagBytes_;
  const bool needsDisk_;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<LogWriter> disk_;
  std::vector<DiskNumbers> diskNumbers_;
  uint64_t next_ = 1;
  bool waits_ = false;
  Stream stream_ = 0;
  bool open_ = false;
  PendingRecords pending_;
  uint64_t pendingBytes_ = 0;
  uint64_t unheldBytes_ = 0;  // in pending_, or taken out and not held
  uint64_t held_ = 1;
  Fulfillers roomWaiters_;
  kj::Maybe<Fulfiller> reader_;
  std::vector<std::pair<uint64_t, Fulfiller>> waiters_;
};

}  // namespace psd
