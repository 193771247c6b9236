#include "trainer/client/transport/device_rings.h"

#include <set>

#include "trainer/client/transport/push_calls.h"

namespace psd {

kj::Promise<DeviceRings::Opened> DeviceRings::open(DaemonConnection& connection,
                                                   std::unique_ptr<DeviceCopier> copier,
                                                   std::vector<uint32_t> deviceOfShard, RingSizes sizes) {
  const std::set<uint32_t> devices(deviceOfShard.begin(), deviceOfShard.end());
  auto rings = std::make_unique<DeviceRings>(connection, std::move(copier), std::move(deviceOfShard), sizes);
  auto opened = rings->openEach({devices.begin(), devices.end()});
  return opened.then([rings = std::move(rings)](Status status) mutable -> Opened {
    if (!status.ok()) return status.error();
    return std::move(rings);
  });
}

DeviceRings::DeviceRings(DaemonConnection& connection, std::unique_ptr<DeviceCopier> copier,
                         std::vector<uint32_t> deviceOfShard, RingSizes sizes)
    : connection_(connection),
      copier_(std::move(copier)),
      deviceOfShard_(std::move(deviceOfShard)),
      sizes_(sizes),
      copies_(*copier_) {}

kj::Promise<Status> DeviceRings::openEach(std::vector<uint32_t> missing) {
  if (missing.empty()) return Status();
  const uint32_t device = missing.back();
  missing.pop_back();
  auto request = connection_.trainer().openDeviceRingRequest();
  request.setDevice(device);
  request.setBytes(2 * sizes_.places * sizes_.placeBytes);
  return request.send().then(
      [this, device, missing = std::move(missing)](
          capnp::Response<schema::DeviceRingResult> answer) mutable -> kj::Promise<Status> {
        if (answer.isError()) return Status(sanitized(wire::readError(answer.getError())));
        auto mapping = copier_->map(wire::bytesIn(answer.getHandle()));
        if (!mapping.ok()) return mapping.status();
        rings_[device] = std::make_unique<Ring>(*std::move(mapping), sizes_);
        return openEach(std::move(missing));
      });
}

kj::Promise<SlicePushed> DeviceRings::push(const PushRequest& push, const Slice& slice,
                                           const SliceValues& values) {
  if (closed_) return SlicePushed{.status = *closed_};
  Ring& ring = ringOf(slice);
  const auto bytes = values.values.size_bytes();
  if (Status fits = ring.pushes.checkSlice(bytes); !fits.ok()) return SlicePushed{.status = std::move(fits)};
  RingPlaces::Place place = ring.pushes.take();
  auto copied = copies_.copy(ring.at(place), values.values.data(), bytes);
  return copied.then(
      [this, place = std::move(place), &push, slice](Status status) mutable -> kj::Promise<SlicePushed> {
        if (status.ok() && closed_) status = *closed_;
        if (status.ok()) {
          return pushAt(std::move(place), connection_.trainer().pushFromDeviceRequest(pushCall(push, slice)),
                        push, slice);
        }
        place.release();
        return SlicePushed{.status = std::move(status)};
      });
}

kj::Promise<Result<SlicePulled>> DeviceRings::pull(uint64_t pull, const Slice& slice, std::span<float> into) {
  Status fits = ringOf(slice).pulls.checkSlice(into.size_bytes());
  if (!fits.ok()) return Result<SlicePulled>(fits.error());
  // Several pulls may be in progress, each with its own window.
  return ringOf(slice).pulls.takeWhenFree().then([this, pull, slice, into](RingPlaces::Place place) {
    return pullThrough(std::move(place), pull, slice, into);
  });
}

kj::Promise<Result<SlicePulled>> DeviceRings::pullThrough(RingPlaces::Place place, uint64_t pull,
                                                          const Slice& slice, std::span<float> into) {
  if (closed_) {
    place.release();
    return Result<SlicePulled>(*closed_);
  }
  auto request = connection_.trainer().pullToDeviceRequest(capnp::MessageSize{16, 0});
  request.setPull(pull);
  request.setShard(slice.shard.value);
  request.setOffset(slice.offset);
  request.setCount(slice.count);
  request.setAt(place.at());
  return request.send().dropPipeline().then([this, into, &ring = ringOf(slice), place = std::move(place)](
                                                auto answer) mutable -> kj::Promise<Result<SlicePulled>> {
    std::optional<Error> error = closed_;
    if (!error && answer.isError()) error = sanitized(wire::readError(answer.getError()));
    if (error) {
      place.release();
      return Result<SlicePulled>(*error);
    }
    const SlicePulled pulled{Version{answer.getVersion()}, into.size_bytes()};
    auto copied = copies_.copy(into.data(), ring.at(place), into.size_bytes());
    return copied.then([pulled, place = std::move(place)](Status status) mutable -> Result<SlicePulled> {
      place.release();
      if (!status.ok()) return status.error();
      return pulled;
    });
  });
}

void DeviceRings::close(const Error& why) {
  closed_ = why;
  copies_.end();
  for (auto& [device, ring] : rings_) ring->mapping = nullptr;
}

}  // namespace psd
