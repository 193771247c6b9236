#pragma once

#include <memory>
#include <span>

#include "common/codec/codec.h"
#include "common/codec/row_codec.h"
#include "server/store/shard_storage.h"
#include "server/store/staging_pool.h"

namespace psd {

/// Encodes outgoing parameters into pooled buffers; copies share the pool. Owned by one event loop; the
/// buffers may move to any thread.
class SliceEncoder {
 public:
  struct Encoded {
    std::span<const std::byte> bytes;  ///< up to 7 bytes past the end are readable
    std::shared_ptr<const void> owner;
  };

  SliceEncoder();

  /// A buffer of `bytes`, with up to 7 readable bytes past its end, for assembling outgoing values.
  Result<std::shared_ptr<float>> allocate(uint64_t bytes);

  /// ErrorCode::nonFinite if a value is outside the codec's range, ErrorCode::overloaded if memory is
  /// exhausted.
  Result<Encoded> encode(const Codec& codec, const ReadView& view);
  /// For rows whose values do not change during the call; same errors.
  Result<Encoded> encodeRows(const Codec& codec, std::span<const RowBlock> blocks,
                             std::span<const float> values);

 private:
  const std::shared_ptr<StagingPool> pool_;
};

}  // namespace psd
