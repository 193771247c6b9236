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
  /// The bytes of one slice, as long as `owner` is kept. Up to 7 bytes past their end are readable.
  struct Encoded {
    std::shared_ptr<const void> owner;
    Codec::Bytes bytes;
  };

  /// What draws lots draws them from `seed`, step and slice. Takes memory for a slice when that is first
  /// sent.
  GradientEncoder(std::shared_ptr<const Codec> codec, uint64_t seed);

  const Codec& codec() const { return *codec_; }

  /// Encodes the gradient of the elements from `begin` on, which is always cut into the same slices. The same
  /// step again sends what takeBack() brought, and does not count the gradient twice. Fails (nonFinite) on a
  /// gradient with NaN or infinity, and keeps nothing of it; or where the sum with what was kept is beyond
  /// the codec's range, and forgets both.
  Result<Encoded> encode(Step step, uint64_t begin, std::span<const float> gradient);
  /// What these bytes carried was not taken: it goes into the next push of the slice.
  void takeBack(uint64_t begin, uint64_t count, Codec::Bytes bytes);
  /// Undoes takeBack() of bytes that are sent again as they are.
  void sendAfterAll(uint64_t begin, uint64_t count, Codec::Bytes bytes);

 private:
  struct Buffers;
  /// What is kept of one slice.
  struct Memory {
    std::vector<float> residual, velocity;  // as far as the codec has them
    Step accumulated;                       // whose gradient is in them already
  };
  Memory& memoryOf(uint64_t begin, uint64_t count);

  const std::shared_ptr<const Codec> codec_;
  const uint64_t seed_;
  std::map<uint64_t, Memory> memory_;  // by where the slice begins
  const std::shared_ptr<Buffers> buffers_;
};

}  // namespace psd
