#include "trainer/client/push_ring.h"

#include <cstring>

#include <kj/debug.h>

namespace psd {

Result<std::unique_ptr<ClientPushRing>> ClientPushRing::open(int fd, uint64_t placeBytes, uint32_t places) {
  PSD_ASSIGN_OR_RETURN(auto memory, SharedMemory::open(fd, placeBytes * places, SharedAccess::readWrite));
  return std::unique_ptr<ClientPushRing>(new ClientPushRing(std::move(memory), placeBytes, places));
}

ClientPushRing::ClientPushRing(std::shared_ptr<SharedMemory> memory, uint64_t placeBytes, uint32_t places)
    : memory_(std::move(memory)), placeBytes_(placeBytes), places_(places) {
  for (uint32_t index = places; index-- > 0;) free_.push_back(index);
}

ClientPushRing::Place ClientPushRing::take() {
  KJ_REQUIRE(!free_.empty(), "more slices in flight than the ring has places");
  const uint32_t index = free_.back();
  free_.pop_back();
  return {*this, index};
}

void ClientPushRing::Place::fill(std::span<const float> values) const {
  KJ_REQUIRE(values.size_bytes() <= ring_->placeBytes_, "a slice larger than a place of the ring");
  // Plain stores: the daemon reads the place soon, out of a cache that the two share.
  std::memcpy(ring_->memory_->data() + at(), values.data(), values.size_bytes());
}

}  // namespace psd
