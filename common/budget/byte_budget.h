#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <kj/async.h>

namespace psd {

/// A number of bytes that many share: what one has taken nobody else gets until it is given back. Who waits
/// for some gets them in the order of asking. Thread-safe; lives as long as its leases.
class ByteBudget : public std::enable_shared_from_this<ByteBudget> {
 public:
  /// Some of the bytes; gives them back when destroyed, on any thread. Movable.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Lease() {
      if (budget_) budget_->giveBack(bytes_);
    }

   private:
    friend class ByteBudget;
    Lease(std::shared_ptr<ByteBudget> budget, uint64_t bytes) : budget_(std::move(budget)), bytes_(bytes) {}
    std::shared_ptr<ByteBudget> budget_;
    uint64_t bytes_ = 0;
  };

  static std::shared_ptr<ByteBudget> make(uint64_t bytesMax) {
    return std::shared_ptr<ByteBudget>(new ByteBudget(bytesMax));
  }

  /// Takes `bytes`; none when not so many are left, or others wait for some.
  std::optional<Lease> tryTake(uint64_t bytes);
  /// Resolves on the calling event loop once there are so many; who asks for more than the budget has gets
  /// all of it. To be asked after tryTake(), which costs less.
  kj::Promise<Lease> take(uint64_t bytes);

  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t bytesMax() const { return bytesMax_.load(std::memory_order_relaxed); }
  /// Sets how many bytes there are; what is taken beyond a smaller number stays taken.
  void setBytesMax(uint64_t bytes);
  /// How many wait in take().
  size_t waiting() const { return waiting_.load(); }

 private:
  struct Waiter {
    uint64_t turn, bytes;
    kj::Own<kj::CrossThreadPromiseFulfiller<Lease>> fulfiller;
  };

  explicit ByteBudget(uint64_t bytesMax) : bytesMax_(bytesMax) {}
  bool takeNow(uint64_t bytes);
  void giveBack(uint64_t bytes);
  /// Gives the bytes that are left to the callers that wait, in their order.
  void serve();
  /// Drops the waiter of `turn`, if it still waits, so that it is in nobody's way.
  void forget(uint64_t turn);

  std::atomic<uint64_t> bytesMax_;
  std::atomic<uint64_t> used_{0};
  std::atomic<size_t> waiting_{0};
  std::mutex mutex_;  // guards what follows; taken only where somebody waits
  uint64_t turns_ = 0;
  std::deque<Waiter> waiters_;
};

}  // namespace psd
