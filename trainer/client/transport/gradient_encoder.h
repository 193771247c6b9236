#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/codec/codec.h"
#include "common/types/ids.h"

namespace psd {

/// Encodes a trainer's gradients slice by slice with error feedback: what a codec leaves out of one push is
/// added to the next (Seide et al. 2014; Karimireddy, Rebjock, Stich, Jaggi 2019). Owned by one thread.
class GradientEncoder {
 public:
  /// The bytes of one slice, valid while `owner` is kept. Up to 7 bytes past their end are readable.
  struct Encoded {
    std::shared_ptr<const void> owner;
    Codec::Bytes bytes;
  };

  /// Random codecs are seeded by `seed`, step and slice. Memory for a slice is allocated when it is first
  /// sent.
  GradientEncoder(std::shared_ptr<const Codec> codec, uint64_t seed);

  const Codec& codec() const { return *codec_; }

  /// Encodes the gradient of the elements from `begin`; the arena is always cut into the same slices. A
  /// repeated step sends what restoreResidual() returned, without counting the gradient twice. Fails
  /// (nonFinite) on a gradient with NaN or infinity, of which it keeps nothing; or if the sum with the
  /// residual exceeds the codec's range, and discards both.
  Result<Encoded> encode(Step step, uint64_t begin, std::span<const float> gradient);
  /// The content of these bytes was not taken: it goes into the next push of the slice.
  void restoreResidual(uint64_t begin, uint64_t count, Codec::Bytes bytes);
  /// Undoes restoreResidual() of bytes that are resent unchanged.
  void undoRestoreResidual(uint64_t begin, uint64_t count, Codec::Bytes bytes);

 private:
  struct Buffers;
  /// State of one slice.
  struct Memory {
    std::vector<float> residual, velocity;  // the slots that the codec uses
    Step accumulated;                       // whose gradient they already include
  };
  Memory& memoryOf(uint64_t begin, uint64_t count);

  const std::shared_ptr<const Codec> codec_;
  const uint64_t seed_;
  std::map<uint64_t, Memory> memory_;  // by the slice's begin
  const std::shared_ptr<Buffers> buffers_;
};

}  // namespace psd
