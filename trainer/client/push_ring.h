#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/os/shared_memory.h"

namespace psd {

/// Memory shared with the daemon to push gradients through, in places of one slice each. All its books are
/// here; the daemon only reads where it is told to. Belongs to the channel's event loop.
class ClientPushRing {
 public:
  /// A place that is taken until this is destroyed. The ring outlives it.
  class Place {
   public:
    Place(ClientPushRing& ring, uint32_t index) : ring_(&ring), index_(index) {}
    Place(Place&& other) noexcept : ring_(std::exchange(other.ring_, nullptr)), index_(other.index_) {}
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (ring_ != nullptr) ring_->free_.push_back(index_);
    }
    /// Byte of the ring at which it begins.
    uint64_t at() const { return index_ * ring_->placeBytes_; }
    /// Copies what fits in a place to its begin.
    void fill(std::span<const float> values) const;

   private:
    ClientPushRing* ring_;
    uint32_t index_;
  };

  /// Maps the ring, which has room for so many places; the descriptor stays the caller's. `placeBytes` is a
  /// multiple of the layout's grain. ErrorCode::protocolMismatch when the file is smaller.
  static Result<std::unique_ptr<ClientPushRing>> open(int fd, uint64_t placeBytes, uint32_t places);

  uint32_t places() const { return places_; }
  /// One must be free.
  Place take();

 private:
  ClientPushRing(std::shared_ptr<SharedMemory> memory, uint64_t placeBytes, uint32_t places);

  const std::shared_ptr<SharedMemory> memory_;
  const uint64_t placeBytes_;
  const uint32_t places_;
  std::vector<uint32_t> free_;  // the last given back is taken first: it may still be in a cache
};

}  // namespace psd
