#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <kj/async.h>

#include "common/budget/byte_budget.h"
#include "common/plan/shard_plan.h"
#include "server/optimizer/optimizer.h"
#include "server/store/pushed_ranges.h"
#include "server/store/shard_lock.h"
#include "server/store/update_log.h"

namespace psd {

/// What every part of a model that is updated as one has, whatever kind of parameters it holds: its number, a
/// version, a lock, the pushes that are in it and its place in the log. A dense shard (Shard) is one kind, a
/// range of the rows of embedding tables (RowShard) the other. It knows no trainers and decides nothing about
/// consistency. Thread-safe as each member says.
class ParameterBlock {
 public:
  virtual ~ParameterBlock() = default;
  ParameterBlock(const ParameterBlock&) = delete;
  ParameterBlock& operator=(const ParameterBlock&) = delete;

  ShardId id() const { return range_.id; }
  /// The parameter group whose policy and optimizer rule the block.
  uint32_t group() const { return range_.group; }
  /// What the block has of its kind: elements of the arena, or of the space of hashes in RowShard's units.
  const ShardRange& range() const { return range_; }
  /// Index of the block's backend in the ParameterStore.
  size_t device() const { return device_; }
  ShardLock& lock() { return lock_; }
  virtual const Optimizer& optimizer() const = 0;

  /// Updates applied whole.
  Version version() const { return {applied_.load(std::memory_order_acquire)}; }
  /// Takes the next 1-based update number.
  uint64_t beginUpdate() { return begun_.fetch_add(1, std::memory_order_relaxed) + 1; }
  /// Takes the number after the version's, also after an update that failed. For who holds the lock and races
  /// with nobody.
  uint64_t beginUpdateAlone() {
    const uint64_t number = version().value + 1;
    begun_.store(number, std::memory_order_relaxed);
    return number;
  }
  /// What the optimizer must know about update `number`: its rate after the schedule, times `factor`.
  UpdateScalars scalars(uint64_t number, double factor = 1) const {
    return {number, optimizer().learningRate(number) * factor, stateBegan_.value};
  }
  /// The version at which the optimizer's state began as a fresh one.
  Version stateBegan() const { return stateBegan_; }
  /// Counts an update that was applied under the lock, still held: notes whose it was, and writes it down
  /// where there is a log. Gives the version that it made. `room`: from roomToLog().
  Version endUpdate(const AppliedUpdate& update, ByteBudget::Lease room = {});
  /// What endRacingUpdate() made of an update.
  struct Recorded {
    Version version;
    uint64_t logged = 0;  ///< see logged()
  };
  /// Counts an update that was applied while its maker shared the lock, and raced with others: notes whose it
  /// was, writes it down where there is a log, and gives it the number of the version that it made.
  Recorded endRacingUpdate(AppliedUpdate update, ByteBudget::Lease room = {});
  /// The elements that a push is yet to be applied to, for who shares the lock.
  std::vector<PushedRange> lacking(const UpdateSource& push) const;
  /// Counts an update, and notes and writes down nothing of it; gives the version that it made.
  Version endUpdate() { return {applied_.fetch_add(1, std::memory_order_acq_rel) + 1}; }

  /// Resolves once an update with a gradient of so many bytes may wait for the disk; at once without a log.
  /// To be called before the block's lock is taken. With 0 bytes: resolves once all earlier callers have
  /// their room.
  kj::Promise<ByteBudget::Lease> roomToLog(uint64_t gradientBytes) const;
  /// Whether updates are written down.
  bool logs() const { return log_ != nullptr; }
  /// The newest update's number in the log; 0 without a log. Only with the lock held.
  uint64_t logged() const { return logged_; }
  /// Resolves once the update with the number `logged` in the log is on the disk; at once for 0.
  kj::Promise<void> whenDurable(uint64_t logged) const;
  /// Sets the log of the block's updates. To be called before anybody pushes.
  void setLog(std::shared_ptr<UpdateLog> log) { log_ = std::move(log); }

  /// Goes on from a checkpoint: `applied` updates so far, the last of each trainer, and `stateBegan`. Before
  /// anybody else uses the block.
  void restore(Version applied, PushedRanges pushed, Version stateBegan = {}) {
    stateBegan_ = stateBegan;
    begun_.store(applied.value, std::memory_order_relaxed);
    applied_.store(applied.value, std::memory_order_release);
    pushed_ = std::move(pushed);
    divided_ = pushed_.divided();
  }
  /// Which pushes became part of the block, under a policy that applies under the lock. Only with the lock
  /// held by the caller alone.
  const PushedRanges& pushed() const { return pushed_; }
  /// True if some pushes are in some parts of the block's range only. Once false, it stays false.
  bool divided() const { return divided_; }

 protected:
  /// `applied`: where the version is counted; null: here. It outlives the block.
  ParameterBlock(ShardRange range, size_t device, std::atomic<uint64_t>* applied)
      : range_(range),
        device_(device),
        applied_(applied ? *applied : ownApplied_),
        pushed_(range_.count, {}) {}

 private:
  const ShardRange range_;
  const size_t device_;
  ShardLock lock_;
  Version stateBegan_;
  std::atomic<uint64_t> begun_{0};
  std::atomic<uint64_t> ownApplied_{0};
  std::atomic<uint64_t>& applied_;  // in memory that trainers read too, or ownApplied_
  mutable std::mutex ending_;       // of who share the lock, one at a time counts its update
  PushedRanges pushed_;
  std::atomic<bool> divided_{false};
  std::shared_ptr<UpdateLog> log_;
  uint64_t logged_ = 0;
};

}  // namespace psd
