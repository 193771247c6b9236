#include "trainer/client/transport/transports.h"

#include <fmt/format.h>

#include "trainer/client/transport/codec_transport.h"
#include "trainer/client/transport/delta_transport.h"
#include "trainer/client/transport/device_rings.h"
#include "trainer/client/transport/host_ring.h"

namespace psd {

Transports::Transports(DaemonConnection& connection, Transport wanted, int cudaDevice)
    : connection_(connection),
      wanted_(wanted),
      cudaDevice_(cudaDevice),
      messages_(connection),
      messageRows_(connection, messages_),
      sixteenBit_(messages_),
      host_{&messages_, &messages_} {}

void Transports::prefer(std::unique_ptr<SliceTransport> transport) {
  if (transport->canPush()) host_.push = transport.get();
  if (transport->canPull()) host_.pull = transport.get();
  others_.push_back(std::move(transport));
}

void Transports::useCodecs(std::shared_ptr<EncodedPushes> encoder, std::shared_ptr<const Codec> pullCodec) {
  prefer(std::make_unique<CodecTransport>(messages_, std::move(encoder), std::move(pullCodec)));
}

void Transports::useDeltas(const Codec& codec) { prefer(std::make_unique<DeltaTransport>(messages_, codec)); }

kj::Promise<SlicePushed> Transports::Way::push(const PushRequest& push, const Slice& slice) const {
  const ConstArenaValues values = push.gradient.part(slice.arena, slice.count, slice.nativeAt);
  if (slice.dtype == DType::f32) return slices_.push->push(push, slice, {values.floats(), nullptr});
  return sixteenBit_.push(*float32Host_.push, copier_, push, slice, values);
}

kj::Promise<Result<SlicePulled>> Transports::Way::pull(uint64_t pull, const Slice& slice,
                                                       ArenaValues destination) const {
  const ArenaValues into = destination.part(slice.arena, slice.count, slice.nativeAt);
  if (slice.dtype == DType::f32) return slices_.pull->pull(pull, slice, into.floats());
  return sixteenBit_.pull(*float32Host_.pull, copier_, pull, slice, into);
}

Status Transports::stageOnHost() {
  if (hostStaged_) return {};
  PSD_ASSIGN_OR_RETURN(auto copier, DeviceCopier::make(cudaDevice_));
  hostStaged_ = std::make_unique<HostStagedTransport>(*host_.push, *host_.pull, std::move(copier));
  return {};
}

Result<Transports::Way> Transports::choose(bool onDevice, bool sixteenBit) {
  if (!onDevice) return Way(host_, sixteenBit_, host_, nullptr);
  if (!rings_ || sixteenBit) PSD_RETURN_IF_ERROR(stageOnHost());
  SliceTransport* const slices = rings_ ? rings_.get() : hostStaged_.get();
  return Way({slices, slices}, sixteenBit_, host_, hostStaged_ ? &hostStaged_->copier() : nullptr);
}

bool Transports::shouldUseDeviceRings(const TransportOffer& offer, const SessionTerms& terms) const {
  // Local steps are computed in host memory, and codecs work there.
  return wanted_ != Transport::rpc && cudaDevice_ >= 0 && connection_.canPush() && !terms.codec &&
         !terms.pullCodec && terms.localSteps.period == 0 && !offer.deviceOfShard.empty() &&
         !terms.slices.empty();
}

kj::Promise<Status> Transports::open(TransportOffer offer, const SessionTerms& terms, uint32_t window,
                                     uint32_t ringWindow) {
  if (wanted_ == Transport::rpc) return Status();
  auto opened = openDeviceRings(offer, terms, window);
  return opened.then([this, offer = std::move(offer), &terms, window,
                      ringWindow](Status status) mutable -> kj::Promise<Status> {
    if (!status.ok() || rings_) return status;
    auto shared = openSharedModel(offer, terms);
    return shared.then(
        [this, offer = std::move(offer), &terms, window, ringWindow](Status status) -> kj::Promise<Status> {
          if (!status.ok() || !connection_.canPush()) return status;
          return openHostRing(offer, terms, window, ringWindow);
        });
  });
}

Status Transports::fallBack(const Error& why) const {
  if (wanted_ == Transport::automatic) return {};
  return {why.code, fmt::format("transport shm: {}: {}", connection_.server(), why.message)};
}

kj::Promise<Status> Transports::openDeviceRings(const TransportOffer& offer, const SessionTerms& terms,
                                                uint32_t window) {
  if (!shouldUseDeviceRings(offer, terms)) return Status();
  if (offer.deviceOfShard.size() != terms.plan.shards.size()) {
    return Status(ErrorCode::protocolMismatch,
                  fmt::format("{}: the daemon names the devices of {} shards, not of {}",
                              connection_.server(), offer.deviceOfShard.size(), terms.plan.shards.size()));
  }
  auto copier = DeviceCopier::make(cudaDevice_);
  if (!copier.ok()) return fallBack(copier.error());
  const auto sizes = RingSizes::of(terms.slices, offer.ringBytesMax / 2, window);
  if (sizes.places == 0) {
    return fallBack({ErrorCode::invalidArgument,
                     fmt::format("a ring of {} bytes, the daemon's limit, does not hold two slices of {}",
                                 offer.ringBytesMax, sizes.placeBytes)});
  }
  return DeviceRings::open(connection_, std::move(*copier), offer.deviceOfShard, sizes)
      .then([this](DeviceRings::Opened opened) -> Status {
        if (!opened.ok()) return fallBack(opened.error());
        rings_ = std::move(*opened);
        return {};
      });
}

kj::Promise<Status> Transports::openHostRing(const TransportOffer& offer, const SessionTerms& terms,
                                             uint32_t window, uint32_t ringWindow) {
  if (terms.codec) {  // through shared memory bytes are cheap, encoding is not
    return fallBack({ErrorCode::invalidArgument,
                     "gradients travel in messages when a codec is used: " + terms.codec->spec()});
  }
  RingSizes dense;
  if (!terms.slices.empty()) {
    dense = RingSizes::of(terms.slices, offer.ringBytesMax, ringWindow);
    if (dense.places == 0) {
      return fallBack({ErrorCode::invalidArgument,
                       fmt::format("a ring of {} bytes, the daemon's limit, does not hold a slice of {}",
                                   offer.ringBytesMax, dense.placeBytes)});
    }
  }
  const uint64_t left = offer.ringBytesMax - dense.placeBytes * dense.places;
  const RowRingSizes rows = RowRingSizes::of(terms.rowShards.empty() ? 0 : terms.rowValuesMax, left, window);
  if (rows.bytes() == 0) {
    if (dense.places > 0) return openHostRing(dense, rows);
    return fallBack({ErrorCode::invalidArgument,
                     fmt::format("a ring of {} bytes, the daemon's limit, does not hold two slices of {} "
                                 "values",
                                 offer.ringBytesMax, terms.rowValuesMax)});
  }
  return openHostRing(dense, rows);
}

kj::Promise<Status> Transports::openHostRing(const RingSizes& dense, const RowRingSizes& rows) {
  const uint64_t denseBytes = dense.placeBytes * dense.places;
  return openRing(connection_, denseBytes + rows.bytes(), denseBytes)
      .then([this, dense, rows,
             denseBytes](Result<std::shared_ptr<SharedMemory>> memory) -> kj::Promise<Status> {
        if (!memory.ok() && memory.error().code == ErrorCode::overloaded && rows.blockBytes > 0) {
          return openHostRing(dense, {rows.places, 0});  // too large for limits.all_rings_bytes
        }
        if (!memory.ok()) return fallBack(memory.error());
        if (dense.places > 0) prefer(std::make_unique<HostRing>(connection_, *memory, dense));
        if (rows.places.places > 0) {
          ringRows_ =
              std::make_unique<RingRows>(connection_, messageRows_, *std::move(memory), denseBytes, rows);
        }
        return Status();
      });
}

kj::Promise<Status> Transports::openSharedModel(TransportOffer& offer, const SessionTerms& terms) {
  if (terms.hasSixteenBitShards()) offer.model = nullptr;  // it has float32 values
  KJ_IF_MAYBE (memory, offer.model) {
    return memory->getFd().then([this, places = offer.places, &terms](kj::Maybe<int> fd) -> Status {
      auto opened = SharedModel::open(fd.orDefault(-1), places, terms.plan);
      if (!opened.ok()) return fallBack(opened.error());
      shared_ = std::move(*opened);
      return {};
    });
  }
  if (terms.slices.empty()) return Status();  // a model with tables only
  return fallBack(
      {ErrorCode::invalidArgument, offer.notShared.empty() ? "the daemon offers none" : offer.notShared});
}

void Transports::conclude(Step step, const std::vector<ShardId>& dropped) {
  for (const auto& transport : others_) transport->conclude(step, dropped);
}

void Transports::close(const Error& why) {
  for (const auto& transport : others_) transport->close(why);
  if (rings_) rings_->close(why);
  if (hostStaged_) hostStaged_->close(why);
  sixteenBit_.close(why);
  if (ringRows_) ringRows_->close();
}

}  // namespace psd
