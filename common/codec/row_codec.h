#pragma once

#include <cstdint>
#include <span>

#include "common/codec/codec.h"

namespace psd {

/// `rows` consecutive rows of equal length. A value type.
struct RowBlock {
  uint64_t rows = 0;
  uint32_t dim = 0;  ///< values per row
};

// Encoding of rows, block after block, by codecs that suit parameters. A codec that encodes each value
// separately encodes all of them as one slice. A codec whose values share a scale encodes each row as a
// slice, which begins at a multiple of 4 bytes: a row of small values keeps its precision beside one of large
// values.

/// Exact size in bytes of the encoded rows.
uint64_t encodedRowBytes(const Codec& codec, std::span<const RowBlock> blocks);
/// Writes encodedRowBytes() bytes, like Codec::encode(). `values` are of all rows.
Status encodeRows(const Codec& codec, std::span<const RowBlock> blocks, std::span<const float> values,
                  std::byte* out);
/// Whether the bytes are a valid encoding of these rows, with finite values. Fails with badSlice or
/// nonFinite.
Status checkRowBytes(const Codec& codec, std::span<const RowBlock> blocks, Codec::Bytes bytes);
/// Decodes the values of all rows into `out`. The bytes passed checkRowBytes().
void decodeRows(const Codec& codec, std::span<const RowBlock> blocks, Codec::Bytes bytes,
                std::span<float> out);

}  // namespace psd
