#include "trainer/client/transport/host_staged_transport.h"

namespace psd {
namespace {

/// Host memory for the values of a slice. Messages are sent in whole words of 8 bytes.
struct HostSlice {
  explicit HostSlice(uint64_t count) : memory(new float[count + 2]), values(memory.get(), count) {}

  const std::unique_ptr<float[]> memory;
  const std::span<float> values;
};

}  // namespace

kj::Promise<SlicePushed> HostStagedTransport::push(const PushRequest& push, const Slice& slice,
                                                   const SliceValues& values) {
  const auto host = std::make_shared<HostSlice>(slice.count);
  Status copied = copier_->copy(host->values.data(), values.values.data(), values.values.size_bytes());
  if (!copied.ok()) return SlicePushed{.status = std::move(copied)};
  return pushes_.push(push, slice, {host->values, host});
}

kj::Promise<Result<SlicePulled>> HostStagedTransport::pull(uint64_t pull, const Slice& slice,
                                                           std::span<float> into) {
  const auto host = std::make_shared<HostSlice>(slice.count);
  return pulls_.pull(pull, slice, host->values)
      .then([this, into, host](Result<SlicePulled> pulled) -> Result<SlicePulled> {
        if (!pulled.ok()) return pulled;
        if (closed_) return *closed_;
        PSD_RETURN_IF_ERROR(copier_->copy(into.data(), host->values.data(), into.size_bytes()));
        return pulled;
      });
}

}  // namespace psd
