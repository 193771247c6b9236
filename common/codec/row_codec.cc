#include "common/codec/row_codec.h"

#include <cstring>
#include <string>

namespace psd {
namespace {

/// Whether values take the same bytes separately as together, so that they share nothing.
bool encodesValuesSeparately(const Codec& codec) {
  return codec.encodedBytes(2) == 2 * codec.encodedBytes(1);
}

uint64_t valuesOf(std::span<const RowBlock> blocks) {
  uint64_t values = 0;
  for (const RowBlock& block : blocks) values += block.rows * block.dim;
  return values;
}

/// Bytes from the beginning of a row to that of the next one.
uint64_t stepOf(const Codec& codec, uint32_t dim) {
  constexpr uint64_t kGrain = sizeof(float);
  return (codec.encodedBytes(dim) + kGrain - 1) / kGrain * kGrain;
}

/// Calls visit(dim, index of the row's first value, index of its first byte) for each row until it fails.
template <class Visit>
Status eachRow(const Codec& codec, std::span<const RowBlock> blocks, const Visit& visit) {
  uint64_t value = 0, byte = 0;
  for (const RowBlock& block : blocks) {
    const uint64_t step = stepOf(codec, block.dim);
    for (uint64_t row = 0; row < block.rows; row++, value += block.dim, byte += step) {
      PSD_RETURN_IF_ERROR(visit(block.dim, value, byte));
    }
  }
  return {};
}

}  // namespace

uint64_t encodedRowBytes(const Codec& codec, std::span<const RowBlock> blocks) {
  if (encodesValuesSeparately(codec)) return codec.encodedBytes(valuesOf(blocks));
  uint64_t bytes = 0;
  for (const RowBlock& block : blocks) bytes += block.rows * stepOf(codec, block.dim);
  return bytes;
}

Status encodeRows(const Codec& codec, std::span<const RowBlock> blocks, std::span<const float> values,
                  std::byte* out) {
  if (encodesValuesSeparately(codec)) return codec.encode(values, 0, out);
  return eachRow(codec, blocks, [&](uint32_t dim, uint64_t value, uint64_t byte) {
    const uint64_t bytes = codec.encodedBytes(dim);
    std::memset(out + byte + bytes, 0, stepOf(codec, dim) - bytes);
    return codec.encode(values.subspan(value, dim), 0, out + byte);
  });
}

Status checkRowBytes(const Codec& codec, std::span<const RowBlock> blocks, Codec::Bytes bytes) {
  if (encodesValuesSeparately(codec)) return codec.check(bytes, valuesOf(blocks));
  const uint64_t expected = encodedRowBytes(codec, blocks);
  if (bytes.size() != expected) {
    return {ErrorCode::badSlice, std::string(codec.name()) + ": " + std::to_string(bytes.size()) +
                                     " bytes, but these rows take " + std::to_string(expected)};
  }
  return eachRow(codec, blocks, [&](uint32_t dim, uint64_t, uint64_t byte) {
    return codec.check(bytes.subspan(byte, codec.encodedBytes(dim)), dim);
  });
}

void decodeRows(const Codec& codec, std::span<const RowBlock> blocks, Codec::Bytes bytes,
                std::span<float> out) {
  if (encodesValuesSeparately(codec)) return codec.decode(bytes, out.size(), 0, out);
  static_cast<void>(eachRow(codec, blocks, [&](uint32_t dim, uint64_t value, uint64_t byte) {
    codec.decode(bytes.subspan(byte, codec.encodedBytes(dim)), dim, 0, out.subspan(value, dim));
    return Status();
  }));
}

}  // namespace psd
