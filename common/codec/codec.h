#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/codec/dense.h"
#include "common/status/status.h"
#include "common/text/named_options.h"
#include "common/types/model_spec.h"

namespace psd {

/// An encoder's state for the elements of one slice between steps. Each span is as long as the slice, or
/// empty if Codec::memorySlots() does not request it.
struct CodecMemory {
  std::span<float> residual;  ///< gradient not sent yet
  std::span<float> velocity;  ///< dgc's momentum
};

/// An encoding of float32 values in fewer bytes. Each slice is encoded separately. The head of each codec's
/// file and docs/reference/protocol.md specify the bytes. Immutable; thread-safe.
///
/// Encoding with error feedback, per slice and step (GradientEncoder in trainer/client): accumulate() the
/// gradient into the memory, encode() the residual, settle() the memory. Up to rounding, no decoded value is
/// larger than the largest encoded one.
///
/// Bytes are 8-byte aligned. A peer's bytes must pass check() first; all other functions that read bytes rely
/// on it. Counts are from 1 to 2^31 - 1.
class Codec {
 public:
  using Bytes = std::span<const std::byte>;

  virtual ~Codec() = default;
  Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  virtual std::string_view name() const = 0;
  /// The specification of this codec, with all options: "topk:fraction=0.01".
  const std::string& spec() const { return spec_; }
  /// Arrays that an encoder keeps: 0 for a lossless codec, 1: the residual; 2: also a velocity.
  virtual uint32_t memorySlots() const { return 1; }
  /// Whether this codec's pushes include a momentum, like an optimizer's updates.
  virtual bool addsMomentum() const { return false; }
  /// Whether a single encoding is accurate enough for values that are not accumulated, like parameters.
  virtual bool suitsParameters() const { return false; }

  /// Exact size in bytes of `count` encoded values.
  virtual uint64_t encodedBytes(uint64_t count) const = 0;
  /// Writes encodedBytes() bytes. The values are finite. Random codecs draw from `seed`. Fails (nonFinite) on
  /// a value out of the codec's range.
  virtual Status encode(std::span<const float> values, uint64_t seed, std::byte* out) const = 0;

  /// Whether the bytes are a valid encoding of `count` finite values, with any encoder options. Fails with
  /// badSlice or nonFinite.
  virtual Status check(Bytes bytes, uint64_t count) const = 0;
  /// Decodes the values from `begin` on into `out`. `begin` is a multiple of kCodecBlock, and so is out's
  /// size, unless it reaches the last value.
  virtual void decode(Bytes bytes, uint64_t count, uint64_t begin, std::span<float> out) const = 0;

  /// How a device decodes the bytes directly; empty if only the host can.
  virtual std::optional<DenseCode> denseCode(uint64_t /*count*/) const { return {}; }
  /// Number of values in a sparse encoding, in which all others are zero; empty for a dense one.
  virtual std::optional<uint64_t> entryCount(Bytes /*bytes*/, uint64_t /*count*/) const { return {}; }
  /// The entries from `first` on: their places, ascending, and their values.
  virtual void entries(Bytes, uint64_t /*count*/, uint64_t /*first*/, std::span<uint32_t> /*places*/,
                       std::span<float> /*values*/) const {}

  /// residual += gradient, or the codec's equivalent.
  virtual void accumulate(std::span<const float> gradient, CodecMemory memory) const;
  /// residual -= the decoded bytes, or the codec's equivalent.
  virtual void settle(Bytes bytes, CodecMemory memory) const;
  /// residual += the decoded bytes, after their push failed.
  void restoreResidual(Bytes bytes, CodecMemory memory) const;
  /// residual -= the decoded bytes, reverting restoreResidual(): the push arrived after all.
  void undoRestoreResidual(Bytes bytes, CodecMemory memory) const;

 private:
  friend Result<std::shared_ptr<const Codec>> makeCodec(std::string_view spec);
  void addDecoded(Bytes bytes, std::span<float> to, float factor) const;
  std::string spec_;
};

/// The options after a codec's name, as read by its constructor. Owned by one thread.
class CodecOptions : public NamedOptions {
 public:
  CodecOptions(std::string_view codec, std::string_view text) : NamedOptions("codec", codec, text) {}
  /// The fraction of values that is sent.
  double fraction() { return number("fraction", 0.01, 1e-6, 1); }
};

/// The codec specified by NAME[:option=value[,option=value]]. The error lists the valid names.
Result<std::shared_ptr<const Codec>> makeCodec(std::string_view spec);
/// The decoder of the codec with that name, independent of its options; null if there is none.
const Codec* findDecoder(std::string_view name);
/// The codec whose encoding is the elements of a 16-bit dtype, rounded to nearest even; null for others.
const Codec* codecOf(DType dtype);
/// The names of all codecs, in the order of the list, and of those that suit parameters.
std::vector<std::string_view> codecNames();
std::vector<std::string_view> parameterCodecNames();
/// "name: summary; name: summary", for help texts.
std::string codecHelp();

}  // namespace psd
