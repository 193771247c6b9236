#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
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

/// The unit of update of a model, whatever parameters it holds: an id, a version, a lock, the pushes applied
/// to it and its position in the log. A dense shard (Shard) is one kind, a hash range of the rows of
/// embedding tables (RowShard) the other. Independent of trainers and of the consistency policy.
/// Thread-safety is documented per member.
class ParameterBlock {
 public:
  virtual ~ParameterBlock() = default;
  ParameterBlock(const ParameterBlock&) = delete;
  ParameterBlock& operator=(const ParameterBlock&) = delete;

  ShardId id() const { return range_.id; }
  /// The parameter group whose policy and optimizer apply to the block.
  uint32_t group() const { return range_.group; }
  /// The block's range, in elements of the arena or, for a RowShard, in units of its hash space.
  const ShardRange& range() const { return range_; }
  /// Index of the block's backend in the ParameterStore.
  size_t device() const { return device_; }
  ShardLock& lock() { return lock_; }
  virtual const Optimizer& optimizer() const = 0;

  /// Number of completely applied updates.
  Version version() const { return {applied_.load(std::memory_order_acquire)}; }
  /// Allocates the next 1-based update number.
  uint64_t beginUpdate() { return begun_.fetch_add(1, std::memory_order_relaxed) + 1; }
  /// Allocates version() + 1, also after a failed update. The caller must hold the lock exclusively.
  uint64_t beginExclusiveUpdate() {
    const uint64_t number = version().value + 1;
    begun_.store(number, std::memory_order_relaxed);
    return number;
  }
  /// The optimizer's inputs for update `number`: the push's hyperparameters, or else the optimizer's own,
  /// with the learning rate times `factor`.
  UpdateScalars scalars(uint64_t number, double factor = 1,
                        std::shared_ptr<const Hyperparameters> pushed = nullptr) const {
    return {.number = number,
            .learningRate = optimizer().learningRate(number) * factor,
            .before = stateSince_.value,
            .pushed = std::move(pushed),
            .factor = factor};
  }
  /// The largest learning rate that the push of the newest update carried; empty if it carried none.
  std::optional<double> pushedRate() const {
    const double rate = pushedRate_.load(std::memory_order_relaxed);
    return rate < 0 ? std::nullopt : std::optional(rate);
  }
  /// Records what pushedRate() returns. For callers of endUpdate() without the update.
  void notePushed(const Hyperparameters* pushed);
  /// The version at which the optimizer state was last initialized.
  Version stateSince() const { return stateSince_; }
  /// Completes an update that was applied under the lock, which is still held: records its pushes and appends
  /// it to the log, if any. Returns the version that it created. `space`: from reserveLogSpace().
  Version endUpdate(const AppliedUpdate& update, ByteBudget::Lease space = {});
  /// Result of endRacingUpdate().
  struct Recorded {
    Version version;
    uint64_t logged = 0;  ///< see logged()
  };
  /// Completes an update that was applied under the shared lock, concurrently with others: records its
  /// pushes, appends it to the log, if any, and numbers it with the version that it created.
  Recorded endRacingUpdate(AppliedUpdate update, ByteBudget::Lease space = {});
  /// The elements that do not yet contain the push. For holders of the shared lock.
  std::vector<PushedRange> lacking(const UpdateSource& push) const;
  /// Completes an update without recording its pushes or logging it; returns the version that it created.
  Version endUpdate() { return {applied_.fetch_add(1, std::memory_order_acq_rel) + 1}; }

  /// Resolves with budget for a log record whose gradient has `gradientBytes` bytes; immediately without a
  /// log. Must be called before the block's lock is acquired. With 0 bytes: resolves once all earlier callers
  /// have their budget.
  kj::Promise<ByteBudget::Lease> reserveLogSpace(uint64_t gradientBytes) const;
  /// Whether updates are logged.
  bool logs() const { return log_ != nullptr; }
  /// Log sequence number of the newest update; 0 without a log. The lock must be held.
  uint64_t logged() const { return logged_; }
  /// Resolves once the log is durable up to the sequence number `logged`; immediately for 0.
  kj::Promise<void> whenDurable(uint64_t logged) const;
  /// Sets the log of the block's updates. Must be called before the first push.
  void setLog(std::shared_ptr<UpdateLog> log) { log_ = std::move(log); }

  /// Restores the state of a checkpoint: the number of `applied` updates, the pushes, `stateSince` and the
  /// oldest version whose gradients may be applied. Must be called before any other thread uses the block.
  void restore(Version applied, PushedRanges pushed, Version stateSince = {}, Version oldestBasis = {}) {
    stateSince_ = stateSince;
    oldestBasis_.store(oldestBasis.value, std::memory_order_release);
    begun_.store(applied.value, std::memory_order_relaxed);
    applied_.store(applied.value, std::memory_order_release);
    pushed_ = std::move(pushed);
    divided_ = pushed_.divided();
  }
  /// Replaces the state that is served. The caller holds the lock exclusively, and no update
  /// is in progress. From now on gradients of older versions are dropped.
  /// `pristine`: it counts as not updated(), since a run begins with it.
  void replace(Version applied, Version stateSince, bool pristine) {
    restore(applied, PushedRanges(range_.count, {}), stateSince, applied);
    pristine_.store(pristine ? applied.value : kNeverPristine, std::memory_order_release);
  }
  /// Whether a gradient computed from this version may be applied.
  bool acceptsBasis(Version basis) const {
    return basis.value >= oldestBasis_.load(std::memory_order_acquire);
  }
  /// The version at the last replace(); 0: there was none.
  Version oldestBasis() const { return {oldestBasis_.load(std::memory_order_acquire)}; }
  /// Whether the block contains an update, other than those that it had when a run began with it.
  bool updated() const { return version().value != pristine_.load(std::memory_order_acquire); }
  /// The pushes applied to the block, under a policy that applies under the lock. The lock must be held
  /// exclusively.
  const PushedRanges& pushed() const { return pushed_; }
  /// True if some pushes are applied to only parts of the block's range. Never becomes true again once false.
  bool divided() const { return divided_; }

 protected:
  /// `applied`: the counter of the version; null: a member of the block. Must outlive the block.
  ParameterBlock(ShardRange range, size_t device, std::atomic<uint64_t>* applied)
      : range_(range),
        device_(device),
        applied_(applied ? *applied : ownApplied_),
        pushed_(range_.count, {}) {}

 private:
  static constexpr uint64_t kNeverPristine = UINT64_MAX;

  const ShardRange range_;
  const size_t device_;
  ShardLock lock_;
  Version stateSince_;
  std::atomic<uint64_t> begun_{0};
  std::atomic<double> pushedRate_{-1};    // negative: none
  std::atomic<uint64_t> oldestBasis_{0};  // the version at the last replace()
  std::atomic<uint64_t> pristine_{0};     // the version with which the run began
  std::atomic<uint64_t> ownApplied_{0};
  std::atomic<uint64_t>& applied_;  // in memory shared with trainers, or ownApplied_
  mutable std::mutex recordMutex_;  // serializes endRacingUpdate() of holders of the shared lock
  PushedRanges pushed_;
  std::atomic<bool> divided_{false};
  std::shared_ptr<UpdateLog> log_;
  uint64_t logged_ = 0;
};

}  // namespace psd
