#pragma once

#include <memory>
#include <utility>

#include "common/os/shared_memory.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/ring_places.h"
#include "trainer/client/transport/slice_transport.h"

namespace psd {

/// Requests the session's ring of `bytes` from the daemon, and maps it: the first `residentBytes`
/// immediately, the rest on first access.
kj::Promise<Result<std::shared_ptr<SharedMemory>>> openRing(DaemonConnection& connection, uint64_t bytes,
                                                            uint64_t residentBytes);

/// Pushes through host memory shared with the daemon, in places of one slice each. The allocation state is
/// kept here; the daemon only reads at the places it receives. Belongs to the connection's event loop.
class HostRing final : public SliceTransport {
 public:
  /// `sizes`: from the start of `memory`.
  HostRing(DaemonConnection& connection, std::shared_ptr<SharedMemory> memory, RingSizes sizes)
      : connection_(connection), memory_(std::move(memory)), places_(0, sizes.placeBytes, sizes.places) {}

  const char* name() const override { return "shm"; }
  bool canPush() const override { return true; }
  bool canPull() const override { return false; }
  uint32_t window() const override { return places_.count(); }
  kj::Promise<SlicePushed> push(const PushRequest& push, const Slice& slice,
                                const SliceValues& values) override;
  kj::Promise<Result<SlicePulled>> pull(uint64_t, const Slice&, std::span<float>) override {
    return Result<SlicePulled>(cannot(*this, "pull"));
  }

 private:
  DaemonConnection& connection_;
  const std::shared_ptr<SharedMemory> memory_;
  RingPlaces places_;
};

}  // namespace psd
