#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "trainer/client/api/arena_values.h"
#include "trainer/client/transport/device_copier.h"
#include "trainer/client/transport/message_transport.h"

namespace psd {

/// Transfers slices of shards whose dtype has 16 bits: in messages, in that dtype, or through the transport
/// of a codec, which takes float32. Belongs to the connection's event loop.
class SixteenBitSlices {
 public:
  /// `messages` outlives this object.
  explicit SixteenBitSlices(MessageTransport& messages) : messages_(messages) {}

  /// Pushes a slice's values. `transport`: that of float32 values in host memory. `copier`: if not null, the
  /// values are in its device's memory. As SliceTransport::push() otherwise.
  kj::Promise<SlicePushed> push(SliceTransport& transport, DeviceCopier* copier, const PushRequest& push,
                                const Slice& slice, ConstArenaValues values);
  /// Pulls a slice; the parameters are those of push().
  kj::Promise<Result<SlicePulled>> pull(SliceTransport& transport, DeviceCopier* copier, uint64_t pull,
                                        const Slice& slice, ArenaValues into);
  /// See SliceTransport.
  void close(const Error& why) { closed_ = why; }

 private:
  kj::Promise<Result<SlicePulled>> pullToHost(SliceTransport& transport, uint64_t pull, const Slice& slice,
                                              ArenaValues into);

  MessageTransport& messages_;
  std::optional<Error> closed_;
};

/// Host memory with the bytes of values, which start at `bytes`. A value type.
struct HostBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  ///< null: the caller's
};
/// The values of a slice in host memory, in the slice's dtype: in place if they have it, else a copy.
/// ErrorCode::nonFinite if a value is beyond the dtype's range.
Result<HostBytes> inDtypeOf(const Slice& slice, ConstArenaValues values);

}  // namespace psd
