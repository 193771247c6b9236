// The side of a Channel that moves values of a CUDA device's memory: through rings on the daemon's devices,
// or where there are none by way of host memory.

#include <algorithm>
#include <vector>

#include "common/types/model_layout.h"
#include "common/wire/convert.h"
#include "trainer/client/channel.h"
#include "trainer/client/cleared.h"
#include "trainer/client/push_messages.h"

namespace psd {

Result<DeviceCopier*> Channel::copier() {
  if (!copier_) {
    PSD_ASSIGN_OR_RETURN(copier_, DeviceCopier::make(cudaDevice_));
  }
  return copier_.get();
}

kj::Promise<Status> Channel::openDeviceRings(schema::ModelAccess::Reader access, uint32_t window) {
  // Steps that a trainer takes by itself are taken in host memory, and codecs work there.
  if (cudaDevice_ < 0 || transport_ == Transport::rpc || terms_.codec || terms_.pullCodec ||
      access.hasLocalSteps() || !access.hasDeviceOfShard()) {
    return Status();
  }
  const auto devices = access.getDeviceOfShard();
  if (devices.size() != terms_.plan.shards.size()) {
    return Status(ErrorCode::protocolMismatch, server_ + ": the daemon names the devices of " +
                                                   std::to_string(devices.size()) + " shards, not of " +
                                                   std::to_string(terms_.plan.shards.size()));
  }
  if (const auto usable = copier(); !usable.ok()) return noRing(usable.error());
  const PlaceSizes sizes = placesFor(access.getRingBytesMax() / 2, window);
  if (sizes.places == 0) {
    return noRing({ErrorCode::invalidArgument, "a ring of " + std::to_string(access.getRingBytesMax()) +
                                                   " bytes, the daemon's most, holds no two slices of " +
                                                   std::to_string(sizes.bytes)});
  }
  std::vector<uint32_t> deviceOfShard;
  for (const uint32_t device : devices) deviceOfShard.push_back(device);
  auto rings = std::make_unique<ClientDeviceRings>(std::move(deviceOfShard));
  auto each = rings->devices();
  return openDeviceRings(std::move(rings), std::move(each), sizes);
}

kj::Promise<Status> Channel::openDeviceRings(std::unique_ptr<ClientDeviceRings> rings,
                                             std::vector<uint32_t> missing, const PlaceSizes& sizes) {
  // Rings that are open when another one cannot be stay the session's, unused.
  if (missing.empty()) {
    deviceRings_ = std::move(rings);
    return Status();
  }
  const uint32_t device = missing.back();
  missing.pop_back();
  auto request = KJ_ASSERT_NONNULL(trainer_).openDeviceRingRequest();
  request.setDevice(device);
  request.setBytes(2 * sizes.places * sizes.bytes);
  return request.send().then(
      [this, device, sizes, rings = std::move(rings), missing = std::move(missing)](
          capnp::Response<schema::DeviceRingResult> answer) mutable -> kj::Promise<Status> {
        if (answer.isError()) return noRing(cleared(wire::readError(answer.getError())));
        auto mapping = copier_->map(wire::bytesIn(answer.getHandle()));
        if (!mapping.ok()) return noRing(mapping.error());
        rings->add(device,
                   std::make_unique<ClientDeviceRing>(*std::move(mapping), sizes.bytes, sizes.places));
        return openDeviceRings(std::move(rings), std::move(missing), sizes);
      });
}

kj::Promise<Status> Channel::pushThroughDevice(const PushOrder& order, const Slice& slice,
                                               PushProgress& push) {
  if (ended_) return Status(*ended_);
  ClientDeviceRing& ring = deviceRings_->of(slice.shard.value);
  RingPlaces::Place place = ring.pushes.take();
  const auto values = order.gradient.subspan(slice.arena, slice.count);
  if (Status copied = copier_->copy(ring.at(place), values.data(), values.size_bytes()); !copied.ok()) {
    place.giveBack();
    return copied;
  }
  auto request = KJ_ASSERT_NONNULL(trainer_).pushFromDeviceRequest(capnp::MessageSize{24, 0});
  describe(request.initHead(), order, slice, terms_.plan.shards.size());
  request.setAt(place.at());
  request.setCount(slice.count);
  return request.send().dropPipeline().then(
      [slice, &push, place = std::move(place)](PushResponse answer) mutable {
        place.giveBack();
        return readAnswer(answer, slice, slice.count * sizeof(float), push.info);
      });
}

Result<SliceValues> Channel::valuesOf(const PushOrder& order, const Slice& slice) {
  const auto values = order.gradient.subspan(slice.arena, slice.count);
  if (!order.onDevice) return SliceValues{values, nullptr};
  PSD_ASSIGN_OR_RETURN(DeviceCopier* const copier, this->copier());
  auto host = std::make_shared<HostSlice>(slice.count);
  PSD_RETURN_IF_ERROR(copier->copy(host->values().data(), values.data(), values.size_bytes()));
  return SliceValues{host->values(), host};
}

kj::Promise<Status> Channel::pullThroughDevice(uint64_t pull, const Slice& slice, std::span<float> into,
                                               PullInfo& info) {
  ClientDeviceRing& ring = deviceRings_->of(slice.shard.value);
  return ring.pulls.takeWhenFree().then(
      [this, pull, slice, into, &info, &ring](RingPlaces::Place place) -> kj::Promise<Status> {
        if (ended_) {
          place.giveBack();
          return Status(*ended_);
        }
        auto request = KJ_ASSERT_NONNULL(trainer_).pullToDeviceRequest(capnp::MessageSize{16, 0});
        request.setPull(pull);
        request.setShard(slice.shard.value);
        request.setOffset(slice.offset);
        request.setCount(slice.count);
        request.setAt(place.at());
        return request.send().dropPipeline().then(
            [this, slice, into, &info, &ring,
             place = std::move(place)](capnp::Response<schema::DevicePullResult> answer) mutable -> Status {
              if (ended_) {
                place.giveBack();
                return *ended_;
              }
              const Status copied = answer.isError()
                                        ? Status(cleared(wire::readError(answer.getError())))
                                        : copier_->copy(into.data(), ring.at(place), into.size_bytes());
              place.giveBack();
              if (!copied.ok()) return copied;
              noteVersion(info, slice, answer.getVersion());
              info.bytes += into.size_bytes();
              return {};
            });
      });
}

kj::Promise<Status> Channel::pullByWayOfHost(uint64_t pull, const Slice& slice, std::span<float> into,
                                             PullInfo& info) {
  const auto copier = this->copier();
  if (!copier.ok()) return copier.status();
  auto host = kj::heap<HostSlice>(slice.count);
  auto values = host->values();
  return pullSlice(pull, slice, values, info)
      .then([copier = *copier, into, values](Status status) -> Status {
        if (!status.ok()) return status;
        return copier->copy(into.data(), values.data(), values.size_bytes());
      })
      .attach(kj::mv(host));
}

}  // namespace psd
