#pragma once

#include <memory>

#include "common/codec/codec.h"
#include "trainer/client/transport/message_transport.h"
#include "trainer/client/transport/row_transport.h"

namespace psd {

/// Rows in messages, as float32 or through codecs. Where the rows of a slice are neighbours in the batch,
/// pushes reference them where they lie, and large answers are read straight to their place. Belongs to the
/// connection's event loop.
class MessageRows final : public RowTransport {
 public:
  /// Both outlive it.
  MessageRows(DaemonConnection& connection, MessageTransport& messages)
      : connection_(connection), messages_(messages) {}

  /// From now on gradients and values go through these codecs; null, or one that leaves values out: as
  /// float32. Such codecs keep what they leave out for the next push, and are not for rows, which come and
  /// go.
  void useCodecs(const std::shared_ptr<const Codec>& pushes, const std::shared_ptr<const Codec>& pulls);

  const char* name() const override { return "rpc"; }
  kj::Promise<SlicePushed> push(const PushRequest& push, const RowSlice& slice) override;
  kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const RowSlice& slice, RowBatch& batch) override;

 private:
  kj::Promise<SlicePushed> pushEncoded(const PushRequest& push, const RowSlice& slice);

  DaemonConnection& connection_;
  MessageTransport& messages_;
  std::shared_ptr<const Codec> pushCodec_, pullCodec_;  // null: float32
};

}  // namespace psd
