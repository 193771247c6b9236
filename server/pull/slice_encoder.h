#pragma once

#include <memory>
#include <span>

#include "common/codec/codec.h"
#include "common/codec/row_codec.h"
#include "server/store/shard_storage.h"
#include "server/store/staging_pool.h"

namespace psd {

/// Encodes parameters on their way to a reader, into buffers that are used again. Belongs to one event loop;
/// the buffers may go anywhere.
class SliceEncoder {
 public:
  struct Encoded {
    std::span<const std::byte> bytes;  ///< up to 7 more are readable
    std::shared_ptr<const void> owner;
  };

  SliceEncoder();

  /// A buffer of so many bytes, of which up to 7 more are readable, for values that are put together to be
  /// sent.
  Result<std::shared_ptr<float>> room(uint64_t bytes);

  /// Fails with nonFinite where a value is beyond the codec's range, or overloaded without memory.
  Result<Encoded> encode(const Codec& codec, const ReadView& view);
  /// Rows, whose values stay as they are meanwhile; fails likewise.
  Result<Encoded> encodeRows(const Codec& codec, std::span<const RowBlock> blocks,
                             std::span<const float> values);

 private:
  const std::shared_ptr<StagingPool> pool_;
};

}  // namespace psd
