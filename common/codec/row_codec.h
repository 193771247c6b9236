#pragma once

#include <cstdint>
#include <span>

#include "common/codec/codec.h"

namespace psd {

/// So many rows of equal length, one after the other. A value type.
struct RowBlock {
  uint64_t rows = 0;
  uint32_t dim = 0;  ///< values of a row
};

// How a codec that suits parameters writes rows, block after block. One that writes each value by itself
// writes all of them as one slice. One whose values share a scale encodes each row as a slice of its own,
// which begins at a multiple of 4 bytes: a row of small values keeps its digits beside one of large values.

/// Bytes that the rows take, exactly.
uint64_t encodedRowBytes(const Codec& codec, std::span<const RowBlock> blocks);
/// Writes encodedRowBytes(), as Codec::encode() does. `values` are of all rows.
Status encodeRows(const Codec& codec, std::span<const RowBlock> blocks, std::span<const float> values,
                  std::byte* out);
/// Whether the bytes encode these rows, of finite values. Fails with badSlice or nonFinite.
Status checkRowBytes(const Codec& codec, std::span<const RowBlock> blocks, Codec::Bytes bytes);
/// out = the values of all rows. The bytes passed checkRowBytes().
void decodeRows(const Codec& codec, std::span<const RowBlock> blocks, Codec::Bytes bytes,
                std::span<float> out);

}  // namespace psd
