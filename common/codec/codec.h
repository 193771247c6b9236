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

namespace psd {

/// What an encoder keeps between steps about the elements of one slice. A span is as long as the slice, or
/// empty where Codec::memorySlots() does not ask for it.
struct CodecMemory {
  std::span<float> residual;  ///< gradient that no push has carried yet
  std::span<float> velocity;  ///< dgc's momentum
};

/// One way to write float32 values in fewer bytes. A slice is encoded by itself. The head of each codec's
/// file and docs/protocol.md say what the bytes mean. Immutable; thread-safe.
///
/// Encoding with error feedback goes so, per slice and step (GradientEncoder in trainer/client does it):
/// accumulate() the gradient into the memory, encode() the residual, settle() the memory. No value that is
/// decoded is larger than the largest that was encoded, but for rounding.
///
/// Bytes lie 8-byte aligned. Bytes of a peer go through check() first; all other functions that read bytes
/// trust what check() found right. Counts are from 1 to 2^31 - 1.
class Codec {
 public:
  using Bytes = std::span<const std::byte>;

  virtual ~Codec() = default;
  Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  virtual std::string_view name() const = 0;
  /// How this codec is chosen, with all its options: "topk:fraction=0.01".
  const std::string& spec() const { return spec_; }
  /// Arrays that an encoder keeps: none where nothing is lost, else the residual; 2: a velocity as well.
  virtual uint32_t memorySlots() const { return 1; }
  /// Whether this codec's pushes carry a momentum, as an optimizer's updates may.
  virtual bool addsMomentum() const { return false; }
  /// Whether values that nobody adds up, like parameters, come close to themselves in one go.
  virtual bool suitsParameters() const { return false; }

  /// Bytes that `count` values take, exactly.
  virtual uint64_t encodedBytes(uint64_t count) const = 0;
  /// Writes encodedBytes() of them. The values are finite. What draws lots draws them from `seed`. Fails
  /// (nonFinite) on a value that the codec has no room for.
  virtual Status encode(std::span<const float> values, uint64_t seed, std::byte* out) const = 0;

  /// Whether these bytes encode `count` finite values, whatever the encoder's options were. Fails with
  /// badSlice or nonFinite.
  virtual Status check(Bytes bytes, uint64_t count) const = 0;
  /// out = the values from `begin` on. `begin` is a multiple of kCodecBlock, and so is out's size, unless
  /// it reaches the last value.
  virtual void decode(Bytes bytes, uint64_t count, uint64_t begin, std::span<float> out) const = 0;

  /// How a device decodes by itself; nothing where a host must.
  virtual std::optional<DenseCode> denseCode(uint64_t /*count*/) const { return {}; }
  /// How many values the bytes hold where all others are zero; nothing where they hold all.
  virtual std::optional<uint64_t> entryCount(Bytes /*bytes*/, uint64_t /*count*/) const { return {}; }
  /// The entries from `first` on: their places, ascending, and their values.
  virtual void entries(Bytes, uint64_t /*count*/, uint64_t /*first*/, std::span<uint32_t> /*places*/,
                       std::span<float> /*values*/) const {}

  /// residual += gradient, or what the codec has in its place.
  virtual void accumulate(std::span<const float> gradient, CodecMemory memory) const;
  /// residual -= the decoded bytes, or what the codec has in its place.
  virtual void settle(Bytes bytes, CodecMemory memory) const;
  /// residual += the decoded bytes: what they carried has not arrived.
  void takeBack(Bytes bytes, CodecMemory memory) const;
  /// residual -= the decoded bytes: what was taken back arrives after all.
  void undoTakeBack(Bytes bytes, CodecMemory memory) const;

 private:
  friend Result<std::shared_ptr<const Codec>> makeCodec(std::string_view spec);
  void addDecoded(Bytes bytes, std::span<float> to, float factor) const;
  std::string spec_;
};

/// The options behind a codec's name, as a codec's constructor reads them. Owned by one thread.
class CodecOptions : public NamedOptions {
 public:
  CodecOptions(std::string_view codec, std::string_view text) : NamedOptions("codec", codec, text) {}
  /// The share of values that is sent.
  double fraction() { return number("fraction", 0.01, 1e-6, 1); }
};

/// The codec that NAME[:option=value[,option=value]] chooses. The error says what there is.
Result<std::shared_ptr<const Codec>> makeCodec(std::string_view spec);
/// The codec that decodes the bytes of a codec that a peer names, whatever its options; null when there is
/// none of that name.
const Codec* findDecoder(std::string_view name);
/// The names of all codecs, in the order of the list, and of all that suit parameters.
std::vector<std::string_view> codecNames();
std::vector<std::string_view> parameterCodecNames();
/// "name: summary; name: summary", for help texts.
std::string codecHelp();

}  // namespace psd
