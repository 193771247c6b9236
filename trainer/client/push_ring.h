#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/os/shared_memory.h"
#include "trainer/client/ring_places.h"

namespace psd {

/// Memory shared with the daemon to push gradients through, in places of one slice each. All its books are
/// here; the daemon only reads where it is told to. Belongs to the channel's event loop.
class ClientPushRing {
 public:
  /// Maps the ring, which has room for so many places; the descriptor stays the caller's. `placeBytes` is a
  /// multiple of the layout's grain. ErrorCode::protocolMismatch when the file is smaller.
  static Result<std::unique_ptr<ClientPushRing>> open(int fd, uint64_t placeBytes, uint32_t places);

  RingPlaces& places() { return places_; }
  /// Where a place begins, in this process.
  std::byte* at(const RingPlaces::Place& place) const { return memory_->data() + place.at(); }
  /// Copies what fits in a place to its begin.
  void fill(const RingPlaces::Place& place, std::span<const float> values) const;

 private:
  ClientPushRing(std::shared_ptr<SharedMemory> memory, uint64_t placeBytes, uint32_t places)
      : memory_(std::move(memory)), places_(0, placeBytes, places) {}

  const std::shared_ptr<SharedMemory> memory_;
  RingPlaces places_;
};

}  // namespace psd
