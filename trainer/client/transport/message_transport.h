#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>

#include "common/codec/sparse.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/slice_transport.h"

namespace psd {

/// Values in messages: pushes reference them in place, and large ones are read directly into the destination
/// of a pull. Belongs to the connection's event loop.
class MessageTransport final : public SliceTransport {
 public:
  explicit MessageTransport(DaemonConnection& connection);

  const char* name() const override { return "rpc"; }
  bool canPush() const override { return connection_.canPush(); }
  bool canPull() const override { return connection_.canPull(); }
  kj::Promise<SlicePushed> push(const PushRequest& push, const Slice& slice,
                                const SliceValues& values) override;
  kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const Slice& slice, std::span<float> into) override {
    return pullBytes(pull, slice, std::as_writable_bytes(into));
  }
  /// Pulls a slice of this many bytes, in the shard's dtype.
  kj::Promise<Result<SlicePulled>> pullBytes(uint64_t pull, const Slice& slice, std::span<std::byte> into);

  /// Sets the destination of the float32 values of a slice of a pull, of tensors or rows, while the returned
  /// object is kept. Empty: any memory.
  std::shared_ptr<const void> expect(uint64_t pull, ShardId shard, uint64_t offset,
                                     std::span<std::byte> into);

  /// From now on slices of mostly zeros are pushed as pairs of index and value of the nonzero elements.
  void usePushesOfNonZeros() { pushesNonZeros_ = true; }
  /// Pushes values of the slice's dtype.
  kj::Promise<SlicePushed> pushBytes(const PushRequest& push, const Slice& slice,
                                     std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  /// push() and pull() of values encoded with the codec of this name.
  kj::Promise<SlicePushed> pushEncoded(const PushRequest& push, const Slice& slice, std::string_view codec,
                                       std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  using Take = std::function<Status(std::span<const std::byte>)>;
  kj::Promise<Result<SlicePulled>> pullEncoded(uint64_t pull, const Slice& slice, std::string_view codec,
                                               Take take);

  /// A daemon's answer to a pull of differences.
  struct PulledDelta {
    enum class What { values, delta, same };
    What what = What::values;
    uint64_t view = 0;  ///< the view it belongs to; 0: none, must not be kept
    Version version;
    std::span<const std::byte> bytes;  ///< valid until take() returns
  };
  /// View and version of the caller's values; 0: none.
  struct Held {
    uint64_t view = 0;
    Version version;
  };
  /// pull() of the difference to `held`.
  using TakeDelta = std::function<Result<SlicePulled>(const PulledDelta&)>;
  kj::Promise<Result<SlicePulled>> pullDelta(uint64_t pull, const Slice& slice, const Held& held,
                                             TakeDelta take);

 private:
  using Key = std::tuple<uint64_t, uint32_t, uint64_t>;  // pull, shard, offset

  /// The values that are not zero, if these are few enough.
  std::optional<SparseCodec::Encoded> nonZerosOf(const Slice& slice, std::span<const std::byte> bytes) const;
  kj::ArrayPtr<capnp::word> placeFor(capnp::rpc::Message::Reader envelope, size_t words);

  DaemonConnection& connection_;
  bool pushesNonZeros_ = false;
  std::map<Key, std::span<std::byte>> places_;  // destinations of the slices in flight
};

}  // namespace psd
