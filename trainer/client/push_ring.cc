#include "trainer/client/push_ring.h"

#include <cstring>

#include <kj/debug.h>

namespace psd {

Result<std::unique_ptr<ClientPushRing>> ClientPushRing::open(int fd, uint64_t placeBytes, uint32_t places) {
  PSD_ASSIGN_OR_RETURN(auto memory, SharedMemory::open(fd, placeBytes * places, SharedAccess::readWrite));
  return std::unique_ptr<ClientPushRing>(new ClientPushRing(std::move(memory), placeBytes, places));
}

void ClientPushRing::fill(const RingPlaces::Place& place, std::span<const float> values) const {
  KJ_REQUIRE(values.size_bytes() <= places_.placeBytes(), "a slice larger than a place of the ring");
  // Plain stores: the daemon reads the place soon, out of a cache that the two share.
  std::memcpy(at(place), values.data(), values.size_bytes());
}

}  // namespace psd
