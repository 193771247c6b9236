#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace psd {

struct FreeZeroed {
  void operator()(void* memory) const { std::free(memory); }
};
template <class T>
using ZeroedArray = std::unique_ptr<T[], FreeZeroed>;

/// `count` values of zero bytes. Of a large array only what is used takes memory, which a vector's would not.
template <class T>
ZeroedArray<T> zeroedArray(uint64_t count) {
  static_assert(std::is_trivially_destructible_v<T>);
  void* const memory = std::calloc(count, sizeof(T));
  if (memory == nullptr) throw std::bad_alloc();
  return ZeroedArray<T>(static_cast<T*>(memory));
}

}  // namespace psd
