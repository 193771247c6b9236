#pragma once

#include <map>
#include <memory>
#include <vector>

#include "trainer/client/transport/encoded_pushes.h"
#include "trainer/client/transport/message_transport.h"

namespace psd {

/// Messages with values encoded by a codec. Belongs to the connection's event loop.
class CodecTransport final : public SliceTransport {
 public:
  /// `encoder` and `pullCodec`: for pushes and for pulls; null: not supported. `messages` outlives this
  /// object.
  CodecTransport(MessageTransport& messages, std::shared_ptr<EncodedPushes> encoder,
                 std::shared_ptr<const Codec> pullCodec)
      : messages_(messages), encoder_(std::move(encoder)), pullCodec_(std::move(pullCodec)) {}

  const char* name() const override { return messages_.name(); }
  bool canPush() const override { return encoder_ != nullptr; }
  bool canPull() const override { return pullCodec_ != nullptr; }
  bool encodes() const override { return true; }
  kj::Promise<SlicePushed> push(const PushRequest& push, const Slice& slice,
                                const SliceValues& values) override;
  kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const Slice& slice, std::span<float> into) override;
  void conclude(Step step, const std::vector<ShardId>& dropped) override;

 private:
  /// Records what the answer says about its slice, and about earlier ones.
  void recordAnswer(const PushRequest& push, const Slice& slice, const SlicePushed& answer);

  MessageTransport& messages_;
  const std::shared_ptr<EncodedPushes> encoder_;
  const std::shared_ptr<const Codec> pullCodec_;
  /// By push and shard, the slices for which no answer has said yet whether the shard drops the gradient.
  std::map<Step, std::map<ShardId, std::vector<Slice>>> undecided_;
};

}  // namespace psd
