#include "trainer/client/transport/host_ring.h"

#include <cstring>

#include "trainer/client/transport/push_calls.h"

namespace psd {

kj::Promise<HostRing::Opened> HostRing::open(DaemonConnection& connection, RingSizes sizes) {
  auto request = connection.trainer().openRingRequest();
  request.setBytes(sizes.placeBytes * sizes.places);
  return request.send().then([&connection,
                              sizes](capnp::Response<schema::RingResult> answer) -> kj::Promise<Opened> {
    if (answer.isError()) return Opened(sanitized(wire::readError(answer.getError())));
    auto memory = answer.getMemory();
    auto fd = memory.getFd();
    return fd
        .then([&connection, sizes](kj::Maybe<int> fd) -> Opened {
          PSD_ASSIGN_OR_RETURN(
              auto mapped,
              SharedMemory::open(fd.orDefault(-1), sizes.placeBytes * sizes.places, SharedAccess::readWrite));
          return std::make_unique<HostRing>(connection, std::move(mapped), sizes);
        })
        .attach(kj::mv(memory));  // the descriptor is its
  });
}

HostRing::HostRing(DaemonConnection& connection, std::shared_ptr<SharedMemory> memory, RingSizes sizes)
    : connection_(connection), memory_(std::move(memory)), places_(0, sizes.placeBytes, sizes.places) {}

kj::Promise<SlicePushed> HostRing::push(const PushRequest& push, const Slice& slice,
                                        const SliceValues& values) {
  const auto bytes = values.values.size_bytes();
  if (Status fits = places_.checkSlice(bytes); !fits.ok()) return SlicePushed{.status = std::move(fits)};
  RingPlaces::Place place = places_.take();
  // Plain stores: the daemon reads the place soon, out of a cache that the two share.
  std::memcpy(memory_->data() + place.at(), values.values.data(), bytes);
  return pushAt(std::move(place), connection_.trainer().pushSharedRequest(kPushCall), push, slice);
}

}  // namespace psd
