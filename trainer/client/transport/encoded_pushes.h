#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trainer/client/transport/gradient_encoder.h"
#include "trainer/client/transport/slices.h"

namespace psd {

/// The pushes through a codec that are not fully answered: a slice is encoded once, and resent as the same
/// bytes, so that the encoder's residual is correct whichever transmission is applied. Passed on from one
/// connection of a trainer to the next. Holds the bytes of every push in progress. Owned by one thread.
class EncodedPushes {
 public:
  /// For pushes of `slices`; `seed` as for GradientEncoder.
  EncodedPushes(std::shared_ptr<const Codec> codec, std::vector<Slice> slices, uint64_t seed);

  const Codec& codec() const { return encoder_.codec(); }
  /// Whether a connection with this codec and these slices can continue with it.
  bool fits(const Codec& codec, const std::vector<Slice>& slices) const;

  /// The encoded bytes of a slice; `gradient` is the slice's. Fails like GradientEncoder::encode().
  Result<GradientEncoder::Encoded> encode(Step step, const Slice& slice, std::span<const float> gradient);
  /// The slice's content is in the model; later reports about it change nothing.
  void applied(Step step, const Slice& slice);
  /// The slice's content was not taken: it goes into the next push, unless the slice is sent again.
  void restoreResidual(Step step, const Slice& slice);
  /// No slice of the push is sent any more.
  void finished(Step step);

 private:
  enum class State { sent, applied, takenBack };
  struct Sent {
    GradientEncoder::Encoded encoded;
    State state = State::sent;
  };
  using Key = std::pair<Step, uint64_t>;  // the second: the slice's begin in the arena

  GradientEncoder encoder_;
  const std::vector<Slice> slices_;
  std::map<Key, Sent> sent_;
};

}  // namespace psd
