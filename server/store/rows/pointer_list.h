#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace psd {

/// A growable array of pointers, initially null. set() is for one writer. A reader that learns of a number
/// after its set() may read it at any time: outgrown arrays stay readable, and together take less memory than
/// the newest.
template <class T>
class PointerList {
 public:
  using Pointer = std::atomic<T*>;

  void set(uint64_t number, T* to) {
    if (number >= size_) grow(number + 1);
    arrays_.back()[number].store(to, std::memory_order_relaxed);
  }
  T* get(uint64_t number) const { return all()[number].load(std::memory_order_relaxed); }
  /// The current array; null before the first set().
  const Pointer* all() const { return newest_.load(std::memory_order_acquire); }

 private:
  void grow(uint64_t least) {
    constexpr uint64_t kLeast = 8;
    const uint64_t size = std::max({least, 2 * size_, kLeast});
    auto array = std::make_unique<Pointer[]>(size);
    for (uint64_t i = 0; i < size_; ++i) {
      array[i].store(arrays_.back()[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
    }
    newest_.store(array.get(), std::memory_order_release);
    arrays_.push_back(std::move(array));
    size_ = size;
  }

  std::vector<std::unique_ptr<Pointer[]>> arrays_;  // owned by the writer
  uint64_t size_ = 0;
  std::atomic<const Pointer*> newest_{nullptr};
};

}  // namespace psd
