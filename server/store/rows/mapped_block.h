#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace psd {

/// Zeroed private memory mapped from the system and unmapped by the destructor. Movable; owned by one thread.
class MappedBlock {
 public:
  enum class Pages {
    huge,          ///< huge pages where the system provides them
    smallAtFirst,  ///< small pages for the first 2 MiB, so that a nearly empty block uses little memory
  };

  /// Maps at least `bytes`, rounded up to whole huge pages. Empty, with errno set, if the system refuses.
  static std::optional<MappedBlock> map(uint64_t bytes, Pages pages);

  MappedBlock(MappedBlock&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  MappedBlock& operator=(MappedBlock&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedBlock();

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  /// Makes the first `bytes` resident. No other thread may be using them.
  void touch(uint64_t bytes);

 private:
  MappedBlock(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_;
  uint64_t bytes_;
};

}  // namespace psd
