#include "trainer/client/transport/host_ring.h"

#include <cstring>

#include "trainer/client/transport/push_calls.h"

namespace psd {

kj::Promise<Result<std::shared_ptr<SharedMemory>>> openRing(DaemonConnection& connection, uint64_t bytes,
                                                            uint64_t residentBytes) {
  using Opened = Result<std::shared_ptr<SharedMemory>>;
  auto request = connection.trainer().openRingRequest();
  request.setBytes(bytes);
  return request.send().then(
      [bytes, residentBytes](capnp::Response<schema::RingResult> answer) -> kj::Promise<Opened> {
        if (answer.isError()) return Opened(sanitized(wire::readError(answer.getError())));
        auto memory = answer.getMemory();
        auto fd = memory.getFd();
        return fd
            .then([bytes, residentBytes](kj::Maybe<int> fd) -> Opened {
              return SharedMemory::open(fd.orDefault(-1), bytes, SharedAccess::readWrite, residentBytes);
            })
            .attach(kj::mv(memory));  // owns the descriptor
      });
}

kj::Promise<SlicePushed> HostRing::push(const PushRequest& push, const Slice& slice,
                                        const SliceValues& values) {
  const auto bytes = values.values.size_bytes();
  if (Status fits = places_.checkSlice(bytes); !fits.ok()) return SlicePushed{.status = std::move(fits)};
  RingPlaces::Place place = places_.take();
  // Plain stores: the daemon reads the place soon, from a cache that both share.
  std::memcpy(memory_->data() + place.at(), values.values.data(), bytes);
  return pushAt(std::move(place), connection_.trainer().pushSharedRequest(pushCall(push, slice)), push,
                slice);
}

}  // namespace psd
