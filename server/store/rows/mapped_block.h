#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace psd {

/// Zeroed private memory of the system, given back at the end. Movable; owned by one thread.
class MappedBlock {
 public:
  enum class Pages {
    huge,          ///< where the system gives them
    smallAtFirst,  ///< the first 2 MiB in small ones: what is hardly filled takes little
  };

  /// At least `bytes`, whole huge pages of them. Nothing where the system refuses, with errno saying why.
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
  /// Makes the first `bytes` resident, which must not be in use by others.
  void touch(uint64_t bytes);

 private:
  MappedBlock(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_;
  uint64_t bytes_;
};

}  // namespace psd
