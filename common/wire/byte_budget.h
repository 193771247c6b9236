#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

namespace psd::wire {

/// A number of bytes that many message streams share for what they hold of incoming messages.
/// Thread-safe; lives as long as its leases.
class ByteBudget : public std::enable_shared_from_this<ByteBudget> {
 public:
  /// Some of the bytes; gives them back when destroyed, on any thread. Movable.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept : budget_(std::move(other.budget_)), bytes_(other.bytes_) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Lease() {
      if (budget_) budget_->used_.fetch_sub(bytes_, std::memory_order_relaxed);
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

  /// None when not so many are left.
  std::optional<Lease> tryTake(uint64_t bytes) {
    uint64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > bytesMax_ || used > bytesMax_ - bytes) return {};
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return Lease(shared_from_this(), bytes);
  }

  uint64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  explicit ByteBudget(uint64_t bytesMax) : bytesMax_(bytesMax) {}

  const uint64_t bytesMax_;
  std::atomic<uint64_t> used_{0};
};

}  // namespace psd::wire
