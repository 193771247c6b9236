#pragma once

#include <memory>
#include <optional>

#include "trainer/client/transport/device_copier.h"
#include "trainer/client/transport/slice_transport.h"

namespace psd {

/// Transfers values in a CUDA device's memory over transports for host memory, with a copy in between.
/// Belongs to the connection's event loop.
class HostStagedTransport final : public SliceTransport {
 public:
  /// Transports for pushes and for pulls; both outlive this object.
  HostStagedTransport(SliceTransport& pushes, SliceTransport& pulls, std::unique_ptr<DeviceCopier> copier)
      : pushes_(pushes), pulls_(pulls), copier_(std::move(copier)) {}

  const char* name() const override { return pushes_.name(); }
  bool canPush() const override { return pushes_.canPush(); }
  bool canPull() const override { return pulls_.canPull(); }
  uint32_t window() const override { return pushes_.window(); }
  kj::Promise<SlicePushed> push(const PushRequest& push, const Slice& slice,
                                const SliceValues& values) override;
  kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const Slice& slice, std::span<float> into) override;
  void close(const Error& why) override { closed_ = why; }
  DeviceCopier& copier() { return *copier_; }

 private:
  SliceTransport& pushes_;
  SliceTransport& pulls_;
  const std::unique_ptr<DeviceCopier> copier_;
  std::optional<Error> closed_;
};

}  // namespace psd
