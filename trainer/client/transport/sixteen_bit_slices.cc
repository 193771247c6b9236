#include "trainer/client/transport/sixteen_bit_slices.h"

#include <cstring>
#include <utility>

#include "common/codec/codec.h"

namespace psd {
namespace {

/// Values of a slice in memory of their own.
class Copy {
 public:
  /// `native`: as ArenaValues::isNative().
  Copy(const Slice& slice, bool native)
      : memory_(new float[slice.count + 2]),  // messages are sent in whole words of 8 bytes
        values_(native ? ArenaValues::native(reinterpret_cast<std::byte*>(memory_.get()), slice.count)
                       : ArenaValues(std::span<float>(memory_.get(), slice.count))) {}

  ArenaValues values() const { return values_; }

 private:
  const std::unique_ptr<float[]> memory_;
  const ArenaValues values_;
};

uint64_t sizeOf(const Slice& slice, ConstArenaValues values) {
  return slice.count * dtypeBytes(values.dtypeOf(slice.dtype));
}

std::span<const std::byte> bytesOf(const Slice& slice, ConstArenaValues values) {
  return {values.data(), sizeOf(slice, values)};
}

}  // namespace

Result<HostBytes> inDtypeOf(const Slice& slice, ConstArenaValues values) {
  const Codec* const codec = codecOf(slice.dtype);
  if (values.isNative() || !codec) return HostBytes{bytesOf(slice, values), nullptr};
  const auto copy = std::make_shared<Copy>(slice, true);
  PSD_RETURN_IF_ERROR(codec->encode(values.floats(), 0, copy->values().data()));
  return HostBytes{bytesOf(slice, copy->values()), copy};
}

kj::Promise<SlicePushed> SixteenBitSlices::push(SliceTransport& transport, DeviceCopier* copier,
                                                const PushRequest& push, const Slice& slice,
                                                ConstArenaValues values) {
  std::shared_ptr<const Copy> staged;
  if (copier) {
    staged = std::make_shared<Copy>(slice, values.isNative());
    Status copied = copier->copy(staged->values().data(), values.data(), sizeOf(slice, values));
    if (!copied.ok()) return SlicePushed{.status = std::move(copied)};
    values = staged->values();
  }
  if (transport.encodes()) {
    std::shared_ptr<const Copy> wide = staged;
    if (values.isNative()) {
      wide = std::make_shared<Copy>(slice, false);
      codecOf(slice.dtype)->decode(bytesOf(slice, values), slice.count, 0, wide->values().floats());
      values = wide->values();
    }
    return transport.push(push, slice, {values.floats(), std::move(wide)});
  }
  auto sent = inDtypeOf(slice, values);
  if (!sent.ok()) return SlicePushed{.status = sent.status()};
  return messages_.pushBytes(push, slice, sent->bytes,
                             sent->owner ? std::move(sent->owner) : std::move(staged));
}

kj::Promise<Result<SlicePulled>> SixteenBitSlices::pull(SliceTransport& transport, DeviceCopier* copier,
                                                        uint64_t pull, const Slice& slice, ArenaValues into) {
  if (!copier) return pullToHost(transport, pull, slice, into);
  const auto staged = std::make_shared<Copy>(slice, into.isNative());
  return pullToHost(transport, pull, slice, staged->values())
      .then([this, copier, slice, into, staged](Result<SlicePulled> pulled) -> Result<SlicePulled> {
        if (!pulled.ok()) return pulled;
        if (closed_) return *closed_;
        PSD_RETURN_IF_ERROR(copier->copy(into.data(), staged->values().data(), sizeOf(slice, into)));
        return pulled;
      });
}

kj::Promise<Result<SlicePulled>> SixteenBitSlices::pullToHost(SliceTransport& transport, uint64_t pull,
                                                              const Slice& slice, ArenaValues into) {
  const Codec& codec = *codecOf(slice.dtype);
  if (transport.encodes()) {
    if (!into.isNative()) return transport.pull(pull, slice, into.floats());
    const auto wide = std::make_shared<Copy>(slice, false);
    return transport.pull(pull, slice, wide->values().floats())
        .then([this, &codec, into, wide](Result<SlicePulled> pulled) -> Result<SlicePulled> {
          if (!pulled.ok()) return pulled;
          if (closed_) return *closed_;
          PSD_RETURN_IF_ERROR(codec.encode(wide->values().floats(), 0, into.data()));
          return pulled;
        });
  }
  if (into.isNative()) return messages_.pullBytes(pull, slice, {into.data(), sizeOf(slice, into)});
  return messages_.pullEncoded(pull, slice, "", [&codec, into](std::span<const std::byte> bytes) -> Status {
    PSD_RETURN_IF_ERROR(codec.check(bytes, into.size()));
    codec.decode(bytes, into.size(), 0, into.floats());
    return {};
  });
}

}  // namespace psd
