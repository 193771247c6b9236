#include "trainer/client/transport/encoded_pushes.h"

namespace psd {

EncodedPushes::EncodedPushes(std::shared_ptr<const Codec> codec, std::vector<Slice> slices, uint64_t seed)
    : encoder_(std::move(codec), seed), slices_(std::move(slices)) {}

bool EncodedPushes::fits(const Codec& codec, const std::vector<Slice>& slices) const {
  return codec.spec() == encoder_.codec().spec() && slices == slices_;
}

Result<GradientEncoder::Encoded> EncodedPushes::encode(Step step, const Slice& slice,
                                                       std::span<const float> gradient) {
  const Key key{step, slice.arena};
  if (auto before = sent_.find(key); before != sent_.end()) {
    Sent& sent = before->second;
    if (sent.state == State::takenBack) {
      encoder_.undoRestoreResidual(slice.arena, slice.count, sent.encoded.bytes);
      sent.state = State::sent;
    }
    return sent.encoded;
  }
  PSD_ASSIGN_OR_RETURN(GradientEncoder::Encoded encoded, encoder_.encode(step, slice.arena, gradient));
  sent_.emplace(key, Sent{encoded});
  return encoded;
}

void EncodedPushes::applied(Step step, const Slice& slice) {
  auto sent = sent_.find({step, slice.arena});
  if (sent != sent_.end() && sent->second.state == State::sent) sent->second.state = State::applied;
}

void EncodedPushes::restoreResidual(Step step, const Slice& slice) {
  auto sent = sent_.find({step, slice.arena});
  if (sent == sent_.end() || sent->second.state != State::sent) return;
  encoder_.restoreResidual(slice.arena, slice.count, sent->second.encoded.bytes);
  sent->second.state = State::takenBack;
}

void EncodedPushes::finished(Step step) {
  sent_.erase(sent_.lower_bound({step, 0}), sent_.lower_bound({Step{step.value + 1}, 0}));
}

}  // namespace psd
