#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "trainer/client/device_copier.h"
#include "trainer/client/ring_places.h"

namespace psd {

/// Memory of one of the daemon's devices, shared with it: gradients are laid there to be pushed, and pulled
/// parameters found. Half of its places are for either. All its books are here, also once it is unmapped.
/// Belongs to the channel's event loop.
struct ClientDeviceRing {
  ClientDeviceRing(std::unique_ptr<DeviceCopier::Mapping> mapping, uint64_t placeBytes, uint32_t places)
      : mapping(std::move(mapping)),
        pushes(0, placeBytes, places),
        pulls(places * placeBytes, placeBytes, places) {}

  /// Where a place begins, for the copier, while it is mapped.
  std::byte* at(const RingPlaces::Place& place) const { return mapping->data() + place.at(); }

  std::unique_ptr<DeviceCopier::Mapping> mapping;
  RingPlaces pushes, pulls;
};

/// The rings of all devices that have shards. Belongs to the channel's event loop.
class ClientDeviceRings {
 public:
  /// `deviceOfShard`: as the daemon numbers its devices.
  explicit ClientDeviceRings(std::vector<uint32_t> deviceOfShard)
      : deviceOfShard_(std::move(deviceOfShard)) {}

  /// Each device of which a ring is needed, once.
  std::vector<uint32_t> devices() const;
  void add(uint32_t device, std::unique_ptr<ClientDeviceRing> ring) { rings_[device] = std::move(ring); }
  /// How many places each ring has for either direction. After a ring was added.
  uint32_t placesEach() const { return rings_.begin()->second->pushes.count(); }
  /// Before the daemon learns that the session is over, which lets it free the memory. Nothing is copied
  /// after.
  void unmap() {
    for (auto& [device, ring] : rings_) ring->mapping = nullptr;
  }
  ClientDeviceRing& of(uint32_t shard) const { return *rings_.at(deviceOfShard_[shard]); }

 private:
  const std::vector<uint32_t> deviceOfShard_;
  std::map<uint32_t, std::unique_ptr<ClientDeviceRing>> rings_;
};

}  // namespace psd
