#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/client/transport/batched_copies.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/device_copier.h"
#include "trainer/client/transport/ring_places.h"
#include "trainer/client/transport/slice_transport.h"

namespace psd {

/// Transfers values in a CUDA device's memory, both ways, through rings in the memory of the daemon's devices
/// that hold shards. Belongs to the connection's event loop.
class DeviceRings final : public SliceTransport {
 public:
  using Opened = Result<std::unique_ptr<DeviceRings>>;

  /// Requests a ring on each device that holds shards, and maps it; each direction uses half of a ring's
  /// places. `deviceOfShard`: device numbers of the daemon. If one ring fails, those already open stay with
  /// the session, unused.
  static kj::Promise<Opened> open(DaemonConnection& connection, std::unique_ptr<DeviceCopier> copier,
                                  std::vector<uint32_t> deviceOfShard, RingSizes sizes);
  DeviceRings(DaemonConnection& connection, std::unique_ptr<DeviceCopier> copier,
              std::vector<uint32_t> deviceOfShard, RingSizes sizes);

  const char* name() const override { return "cuda"; }
  bool canPush() const override { return true; }
  bool canPull() const override { return true; }
  uint32_t window() const override { return sizes_.places; }
  kj::Promise<SlicePushed> push(const PushRequest& push, const Slice& slice,
                                const SliceValues& values) override;
  kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const Slice& slice, std::span<float> into) override;
  /// Waits for copies and unmaps the rings before the daemon learns that the session is over and frees them.
  void close(const Error& why) override;

 private:
  /// Memory of one device. The allocation state is kept here, also once the memory is unmapped.
  struct Ring {
    Ring(std::unique_ptr<DeviceCopier::Mapping> mapping, const RingSizes& sizes)
        : mapping(std::move(mapping)),
          pushes(0, sizes.placeBytes, sizes.places),
          pulls(sizes.places * sizes.placeBytes, sizes.placeBytes, sizes.places) {}
    std::byte* at(const RingPlaces::Place& place) const { return mapping->data() + place.at(); }

    std::unique_ptr<DeviceCopier::Mapping> mapping;
    RingPlaces pushes, pulls;
  };

  kj::Promise<Status> openEach(std::vector<uint32_t> missing);
  Ring& ringOf(const Slice& slice) { return *rings_.at(deviceOfShard_[slice.shard.value]); }
  kj::Promise<Result<SlicePulled>> pullThrough(RingPlaces::Place place, uint64_t pull, const Slice& slice,
                                               std::span<float> into);

  DaemonConnection& connection_;
  const std::unique_ptr<DeviceCopier> copier_;
  const std::vector<uint32_t> deviceOfShard_;
  const RingSizes sizes_;
  std::map<uint32_t, std::unique_ptr<Ring>> rings_;
  BatchedCopies copies_;  // destroyed before the rings
  std::optional<Error> closed_;
};

}  // namespace psd
