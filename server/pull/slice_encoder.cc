#include "server/pull/slice_encoder.h"

#include "server/store/cpu/racy_loops.h"

namespace psd {
namespace {

constexpr uint64_t kIdleBytesMax = uint64_t{16} << 20;
constexpr uint64_t kReadablePastEnd = 8;

}  // namespace

SliceEncoder::SliceEncoder()
    : pool_(StagingPool::make(StagingPool::hostMemory(),
                              {.lentBytesMax = UINT64_MAX, .idleBytesMax = kIdleBytesMax})) {}

Result<std::shared_ptr<float>> SliceEncoder::allocate(uint64_t bytes) {
  return pool_->acquire((bytes + kReadablePastEnd) / sizeof(float) + 1);
}

Result<SliceEncoder::Encoded> SliceEncoder::encode(const Codec& codec, const ReadView& view) {
  std::span<const float> values = view.values;
  std::shared_ptr<float> stable;
  if (!view.owner) {  // a live view: codecs read values more than once, and these may change in between
    PSD_ASSIGN_OR_RETURN(stable, pool_->acquire(values.size()));
    racyCopy(values.size(), values.data(), stable.get());
    values = {stable.get(), values.size()};
  }
  const uint64_t bytes = codec.encodedBytes(values.size());
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<float> buffer, allocate(bytes));
  auto* const out = reinterpret_cast<std::byte*>(buffer.get());
  PSD_RETURN_IF_ERROR(codec.encode(values, 0, out));
  return Encoded{{out, bytes}, std::move(buffer)};
}

Result<SliceEncoder::Encoded> SliceEncoder::encodeRows(const Codec& codec, std::span<const RowBlock> blocks,
                                                       std::span<const float> values) {
  const uint64_t bytes = encodedRowBytes(codec, blocks);
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<float> buffer, allocate(bytes));
  auto* const out = reinterpret_cast<std::byte*>(buffer.get());
  PSD_RETURN_IF_ERROR(psd::encodeRows(codec, blocks, values, out));
  return Encoded{{out, bytes}, std::move(buffer)};
}

}  // namespace psd
