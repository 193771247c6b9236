#include "trainer/client/transport/codec_transport.h"

#include <utility>

namespace psd {

kj::Promise<SlicePushed> CodecTransport::push(const PushRequest& push, const Slice& slice,
                                              const SliceValues& values) {
  auto encoded = encoder_->encode(push.step, slice, values.values);
  if (!encoded.ok()) return SlicePushed{.status = encoded.status()};
  return messages_.pushEncoded(push, slice, encoder_->codec().name(), encoded->bytes, encoded->owner)
      .then([this, &push, slice](SlicePushed answer) {
        recordAnswer(push, slice, answer);
        return answer;
      });
}

// What is not taken goes into the next push. With error feedback a push carries the largest values of many
// steps, not only one gradient, so a dropped push must not be lost. A shard's outcome comes with the answer
// to its last slice, or with the step's last slice for all shards. Without an answer, the slice may be sent
// again, or the client has ended.
void CodecTransport::recordAnswer(const PushRequest& push, const Slice& slice, const SlicePushed& answer) {
  auto& undecided = undecided_[push.step][slice.shard];
  if (!answer.dropped.empty()) {
    undecided.push_back(slice);
    push.dropped->insert(push.dropped->end(), answer.dropped.begin(), answer.dropped.end());
    return;
  }
  if (!answer.status.ok()) {
    if (!isLost(answer.status.error())) encoder_->restoreResidual(push.step, slice);
    return;
  }
  undecided.push_back(slice);
  if (answer.outcome == PushOutcome::received) return;
  for (const Slice& decided : std::exchange(undecided, {})) {
    if (answer.outcome == PushOutcome::applied) {
      encoder_->applied(push.step, decided);
    } else {
      encoder_->restoreResidual(push.step, decided);
    }
  }
}

void CodecTransport::conclude(Step step, const std::vector<ShardId>& dropped) {
  if (!encoder_) return;
  auto& undecided = undecided_[step];
  for (const ShardId shard : dropped) {
    for (const Slice& slice : undecided[shard]) encoder_->restoreResidual(step, slice);
  }
  undecided_.erase(step);
  encoder_->finished(step);
}

kj::Promise<Result<SlicePulled>> CodecTransport::pull(uint64_t pull, const Slice& slice,
                                                      std::span<float> into) {
  return messages_.pullEncoded(pull, slice, pullCodec_->name(), [this, into](auto bytes) -> Status {
    PSD_RETURN_IF_ERROR(pullCodec_->check(bytes, into.size()));
    pullCodec_->decode(bytes, into.size(), 0, into);
    return {};
  });
}

}  // namespace psd
