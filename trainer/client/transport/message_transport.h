#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>

#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/slice_transport.h"

namespace psd {

/// Values in messages: pushes reference them where they lie, and large ones are read straight into the
/// destination of a pull. Belongs to the connection's event loop.
class MessageTransport final : public SliceTransport {
 public:
  explicit MessageTransport(DaemonConnection& connection);

  const char* name() const override { return "rpc"; }
  bool canPush() const override { return connection_.canPush(); }
  bool canPull() const override { return connection_.canPull(); }
  kj::Promise<SlicePushed> push(const PushRequest& push, const Slice& slice,
                                const SliceValues& values) override;
  kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const Slice& slice, std::span<float> into) override;

  /// Where the float32 values of a slice of a pull are to be read to, dense or of rows, while what this gives
  /// is kept. Empty: into any memory.
  std::shared_ptr<const void> expect(uint64_t pull, ShardId shard, uint64_t offset, std::span<float> into);

  /// push() and pull() of what the codec of this name makes of the values.
  kj::Promise<SlicePushed> pushEncoded(const PushRequest& push, const Slice& slice, std::string_view codec,
                                       std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  using Take = std::function<Status(std::span<const std::byte>)>;
  kj::Promise<Result<SlicePulled>> pullEncoded(uint64_t pull, const Slice& slice, std::string_view codec,
                                               Take take);

  /// What a daemon answered to a pull of differences.
  struct PulledDelta {
    enum class What { values, delta, same };
    What what = What::values;
    uint64_t view = 0;  ///< that it is of; 0: of none, and not to be held
    Version version;
    std::span<const std::byte> bytes;  ///< until take() ends
  };
  /// The view and the version of what the caller has; 0: nothing.
  struct Held {
    uint64_t view = 0;
    Version version;
  };
  /// pull() of differences to what is held.
  using TakeDelta = std::function<Result<SlicePulled>(const PulledDelta&)>;
  kj::Promise<Result<SlicePulled>> pullDelta(uint64_t pull, const Slice& slice, const Held& held,
                                             TakeDelta take);

 private:
  using Key = std::tuple<uint64_t, uint32_t, uint64_t>;  // pull, shard, offset

  kj::ArrayPtr<capnp::word> placeFor(capnp::rpc::Message::Reader envelope, size_t words);

  DaemonConnection& connection_;
  std::map<Key, std::span<float>> places_;  // destinations of the slices in flight
};

}  // namespace psd
