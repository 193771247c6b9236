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

/// A shared budget of bytes: what one holder has taken is unavailable to others until it is returned. Waiters
/// are served in order of arrival. Thread-safe; lives as long as its leases.
class ByteBudget : public std::enable_shared_from_this<ByteBudget> {
 public:
  /// Bytes taken from the budget; returned on destruction, on any thread. Movable.
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
      if (budget_) budget_->release(bytes_);
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

  /// Takes `bytes`; empty if not enough are left, or others are waiting.
  std::optional<Lease> tryTake(uint64_t bytes);
  /// Resolves on the calling event loop once enough bytes are available; a request above the budget's size
  /// gets the whole budget. Call tryTake() first, which is cheaper.
  kj::Promise<Lease> take(uint64_t bytes);

  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t bytesMax() const { return bytesMax_.load(std::memory_order_relaxed); }
  /// Sets the size of the budget; leases beyond a smaller size remain valid.
  void setBytesMax(uint64_t bytes);
  /// Number of waiters in take().
  size_t waiting() const { return waiting_.load(); }

 private:
  struct Waiter {
    uint64_t turn, bytes;
    kj::Own<kj::CrossThreadPromiseFulfiller<Lease>> fulfiller;
  };

  explicit ByteBudget(uint64_t bytesMax) : bytesMax_(bytesMax) {}
  bool takeNow(uint64_t bytes);
  void release(uint64_t bytes);
  /// Assigns the available bytes to the waiters, in order.
  void serve();
  /// Drops the waiter of `turn`, if it still waits, so that it does not block others.
  void cancel(uint64_t turn);

  std::atomic<uint64_t> bytesMax_;
  std::atomic<uint64_t> used_{0};
  std::atomic<size_t> waiting_{0};
  std::mutex mutex_;  // guards the fields below; locked only while there are waiters
  uint64_t turns_ = 0;
  std::deque<Waiter> waiters_;
};

}  // namespace psd
